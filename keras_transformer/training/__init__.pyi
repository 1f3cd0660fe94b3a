from .checkpoints import Checkpoints as Checkpoints
from .distribution import make_strategy as make_strategy
from .optimizer import compile_for_training as compile_for_training
from .run import RunDirectory as RunDirectory
from .settings import RunConfigs as RunConfigs
from .trainer import Stopped as Stopped
from .trainer import train as train

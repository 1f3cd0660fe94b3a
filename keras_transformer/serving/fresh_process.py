"""The program of a fresh process, which answers warm-up requests as a model server would.

    python -I fresh_process.py VERSION ANSWERS PACKAGES...

VERSION is the folder of a version, ANSWERS the file to write, a pickled list with the outputs of
each request as arrays by name, and PACKAGES where packages are. It imports TensorFlow and
TensorFlow Text, not this package, and loads the graph alone, as a server does;
`tf.saved_model.load` would rebuild Python objects. An error is one line on standard output.
"""

import os
import pathlib
import pickle
import sys


def answer_requests(version: str, answers: str) -> None:
    """Writes the answers of a version to its warm-up requests."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (loads its ops)
    from tensorflow_serving.apis import prediction_log_pb2

    path = pathlib.Path(version, "assets.extra", "tf_serving_warmup_requests")
    outputs = []
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        model = tf.compat.v1.saved_model.load(session, ["serve"], version)
        for record in tf.compat.v1.io.tf_record_iterator(str(path)):
            request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
            signature = model.signature_def[request.model_spec.signature_name]
            fetched = {name: output.name for name, output in signature.outputs.items()}
            fed = {
                signature.inputs[name].name: tf.make_ndarray(value)
                for name, value in request.inputs.items()
            }
            outputs.append(session.run(fetched, fed))
    pathlib.Path(answers).write_bytes(pickle.dumps(outputs))


def main() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    # The process that waits for this one holds the memory of the GPUs.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.modules["keras_transformer"] = None  # type: ignore[assignment]  # importing it fails
    version, answers, *packages = sys.argv[1:]
    sys.path += [path for path in packages if path not in sys.path]  # -I leaves some of them out
    try:
        answer_requests(version, answers)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()

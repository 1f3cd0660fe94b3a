"""The program of a fresh process, which answers warm-up requests as a model server would.

    python -I fresh_process.py VERSION ANSWERS PACKAGES...

VERSION is the folder of a version, ANSWERS the file to write, a TFRecord of `PredictResponse`s, and
PACKAGES where packages are. It imports TensorFlow and TensorFlow Text, not this package, and loads
the graph alone, as a server does; `tf.saved_model.load` would rebuild Python objects. An error is
one line on standard output.
"""

import os
import pathlib
import sys


def answer_requests(version: str, answers: str) -> None:
    """Writes the answers of a version to its warm-up requests."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (loads its ops)
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    path = pathlib.Path(version, "assets.extra", "tf_serving_warmup_requests")
    with (
        tf.compat.v1.Session(graph=tf.Graph()) as session,
        tf.io.TFRecordWriter(answers) as writer,
    ):
        model = tf.compat.v1.saved_model.load(session, ["serve"], version)
        for record in tf.compat.v1.io.tf_record_iterator(str(path)):
            request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
            signature = model.signature_def[request.model_spec.signature_name]
            values = session.run(
                {name: output.name for name, output in signature.outputs.items()},
                {
                    signature.inputs[name].name: tf.make_ndarray(value)
                    for name, value in request.inputs.items()
                },
            )
            outputs = {name: tf.make_tensor_proto(value) for name, value in values.items()}
            writer.write(predict_pb2.PredictResponse(outputs=outputs).SerializeToString())


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

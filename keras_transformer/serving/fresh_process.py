"""The program of a fresh process, which answers warm-up requests as a model server would.

    python -I fresh_process.py VERSION ANSWERS PACKAGES...

VERSION is the folder of a version, ANSWERS the file to write (a TFRecord of `PredictionLog`s with
responses), and PACKAGES where packages are. It imports TensorFlow and TensorFlow Text, not this
package, and loads the graph alone, as a server does; `tf.saved_model.load` would rebuild Python
objects. An error is one line on standard output.
"""

import os
import pathlib
import sys


def answer_requests(version: str, answers: str) -> None:
    """Writes the answers of a version to its warm-up requests."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (loads its ops)
    from tensorflow_serving.apis import prediction_log_pb2

    path = pathlib.Path(version, "assets.extra", "tf_serving_warmup_requests")
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    logs = [prediction_log_pb2.PredictionLog.FromString(each).predict_log for each in records]
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        model = tf.compat.v1.saved_model.load(session, ["serve"], version)
        for log in logs:
            signature = model.signature_def[log.request.model_spec.signature_name]
            outputs = log.request.output_filter or signature.outputs
            values = session.run(
                {name: signature.outputs[name].name for name in outputs},
                {
                    signature.inputs[name].name: tf.make_ndarray(value)
                    for name, value in log.request.inputs.items()
                },
            )
            for name, value in values.items():
                log.response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
    with tf.io.TFRecordWriter(answers) as writer:
        for log in logs:
            writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())


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

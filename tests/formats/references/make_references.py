"""Writes the files beside it with the libraries whose formats we read. Needs what the package does not:

pip install tensorflow-cpu flax orbax-checkpoint tensorstore ml_dtypes; then python make_references.py
"""

import shutil
from pathlib import Path

import flax.serialization
import ml_dtypes
import numpy as np
import orbax.checkpoint
import tensorflow as tf
import tensorstore

HERE = Path(__file__).resolve().parent


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        "shared/embedding": rng.normal(size=(6, 4)).astype(np.float32),
        "encoder/half": rng.normal(size=(3, 5)).astype(ml_dtypes.bfloat16),
        "encoder/quarter": rng.normal(size=(4,)).astype(np.float16),
        "global_step": np.array(1234, np.int64),
        "many": np.arange(200, dtype=np.int32),
        "yes": np.array([True, False, True]),
    }


def tensorflow_checkpoints() -> None:
    shutil.rmtree(HERE / "tensorflow", ignore_errors=True)
    for version in (1, 2):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            names = [name for name in arrays() if version == 2 or name != "encoder/half"]
            variables = [tf.compat.v1.Variable(arrays()[name], name=name) for name in names]
            parts = tf.compat.v1.get_variable("parts", shape=(6, 4), partitioner=lambda shape, dtype: [3, 1])
            session.run(tf.compat.v1.global_variables_initializer())
            rows = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
            session.run([part.assign(own) for part, own in zip(parts, rows, strict=True)])
            saver = tf.compat.v1.train.Saver([*variables, *parts], write_version=version)
            folder = HERE / "tensorflow" / f"v{version}"
            folder.mkdir(parents=True)
            saver.save(session, str(folder / "model.ckpt"), global_step=1234, write_meta_graph=False)


def records() -> None:
    example = tf.train.Example(
        features=tf.train.Features(
            feature={
                "inputs": tf.train.Feature(int64_list=tf.train.Int64List(value=[3, 700, 70_000, 1])),
                "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=["Grüße".encode(), b""])),
                "weights": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, -2.0])),
                "negative": tf.train.Feature(int64_list=tf.train.Int64List(value=[-1, 2**62])),
                "nothing": tf.train.Feature(),
            }
        )
    )
    with tf.io.TFRecordWriter(str(HERE / "examples.tfrecord")) as writer:
        for record in (example.SerializeToString(), b"", b"x" * 1000):
            writer.write(record)


def tree() -> dict:
    return {
        "target": {"encoder": {"kernel": arrays()["shared/embedding"], "half": arrays()["encoder/half"]}},
        "state": {"step": np.array(77, np.int32), "param_states": {"kernel": {"v": np.ones(3, np.float32)}}},
    }


def t5x_folder() -> None:
    """Write a folder like T5X's checkpoints.py: large arrays to zarr, the rest and the specs to the MessagePack
    file."""
    folder = HERE / "t5x" / "checkpoint_77"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    content = tree()
    for name, chunks in (("kernel", [4, 3]), ("half", [3, 5])):
        array = content["target"]["encoder"][name]
        path = f"target.encoder.{name}"
        spec = {
            "driver": "zarr",
            "dtype": array.dtype.name,
            "kvstore": {"driver": "file", "path": str(folder / path)},
            "metadata": {"compressor": {"id": "gzip"}, "shape": list(array.shape), "chunks": chunks},
        }
        tensorstore.open(spec, create=True).result().write(array).result()
        kept = tensorstore.Spec(spec | {"kvstore": {"driver": "file", "path": path}}).to_json()
        content["target"]["encoder"][name] = kept
    (folder / "checkpoint").write_bytes(flax.serialization.to_bytes({"version": 3, "optimizer": content}))


def orbax_folders() -> None:
    for name, use_ocdbt in (("ocdbt", True), ("zarr", False)):
        folder = HERE / "orbax" / name
        shutil.rmtree(folder, ignore_errors=True)
        handler = orbax.checkpoint.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt)
        orbax.checkpoint.Checkpointer(handler).save(folder, tree())


def without_places() -> None:
    """Takes out where this was run."""
    for path in HERE.glob("orbax/*/commit_success.txt"):
        path.unlink()
    for path in HERE.glob("tensorflow/*/checkpoint"):
        path.write_text('model_checkpoint_path: "model.ckpt-1234"\n')


if __name__ == "__main__":
    tensorflow_checkpoints()
    records()
    t5x_folder()
    orbax_folders()
    without_places()

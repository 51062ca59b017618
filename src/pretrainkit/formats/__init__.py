"""Read files of other systems with NumPy alone: TFRecord, TensorFlow's checkpoints, zarr, Flax's MessagePack."""

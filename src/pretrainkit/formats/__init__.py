"""Files of other systems, read with NumPy alone: TFRecord, TensorFlow's checkpoints, zarr, Flax's MessagePack."""

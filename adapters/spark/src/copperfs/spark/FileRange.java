package copperfs.spark;

/** A range of bytes of one file of the dataset. {@code path} is relative to the dataset's root. */
record FileRange(String path, long offset, long length) {}

"""Your own files as clients: CSV, Parquet, .npz, folders of images."""

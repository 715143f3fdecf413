"""One module per command of `watchword`."""

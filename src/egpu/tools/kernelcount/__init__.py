"""kernelcount: launches, threads and blocks, by kernel and SM."""

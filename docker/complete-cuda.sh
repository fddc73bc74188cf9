#!/bin/sh
# Give the CUDA toolkit of the wheels the names that a compile links by and wheels leave out.
# An image without that toolkit has nothing to complete.
# Usage: complete-cuda.sh   (a build step, after the wheels of torch)
set -eu
home=/opt/headrace/lib/python3.11/site-packages/nvidia/cu13

[ -d $home ] || exit 0
ln -s lib $home/lib64
ln -s libcudart.so.13 $home/lib/libcudart.so
# The driver's library is the GPU's machine's; a link needs its names. This one has every name of
# cuda.h and nothing behind them, lies where linkers look and the loader does not, and what is linked
# with it asks for libcuda.so.1. (Without the names a linker that is told --as-needed drops it.)
mkdir $home/lib/stubs
grep -oE '\bcu[A-Z][A-Za-z0-9_]*' $home/include/cuda.h | LC_ALL=C sort -u |
    sed 's/.*/void &(void) {}/' |
    gcc -shared -s -nostdlib -x c -Wl,-soname,libcuda.so.1 -o $home/lib/stubs/libcuda.so -

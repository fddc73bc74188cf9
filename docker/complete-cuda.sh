#!/bin/sh
# Give the CUDA toolkit of the wheels the names that a compile links by and wheels leave out.
# An image without that toolkit has nothing to complete.
# Usage: complete-cuda.sh   (a build step, after the wheels of torch)
set -eu
home=/opt/headrace/lib/python3.11/site-packages/nvidia/cu13

[ -d $home ] || exit 0
ln -s lib $home/lib64
ln -s libcudart.so.13 $home/lib/libcudart.so
# The driver's library is the GPU's machine's. A link needs its name alone: this one is empty, lies
# where linkers look and the loader does not, and asks for libcuda.so.1 when it is used.
mkdir $home/lib/stubs
gcc -shared -s -nostdlib -x c -Wl,-soname,libcuda.so.1 -o $home/lib/stubs/libcuda.so /dev/null

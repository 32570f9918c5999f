"""Prints the counters of the node that serves a mount: python3 stats.py /copper_mnt"""
import fcntl
import os
import struct
import sys

SIZE = 8 + 16368  # struct copperfs_stats
NODE_STATS = 2 << 30 | SIZE << 16 | 0xC7 << 8 | 1  # _IOR(0xC7, 1, struct copperfs_stats)

fd = os.open(sys.argv[1], os.O_RDONLY)
reply = bytearray(SIZE)
fcntl.ioctl(fd, NODE_STATS, reply)
_abi, length = struct.unpack_from("=II", reply)
sys.stdout.write(reply[8 : 8 + length].decode())

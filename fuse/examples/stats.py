"""Prints the counters of the node that serves a mount: python3 stats.py /copper_mnt"""
import fcntl, os, re, struct, sys
header = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../include/copperfs_ioctl.h")).read()
names = re.findall(r"uint64_t \w+; /\* (\S+) \*/", header)
stats = struct.Struct(f"=II64s{len(names)}Q")
fd = os.open(sys.argv[1], os.O_RDONLY)
reply = bytearray(stats.size)
fcntl.ioctl(fd, 2 << 30 | stats.size << 16 | 0xC7 << 8 | 1, reply)  # _IOR(0xC7, 1, struct copperfs_stats)
_abi, _size, node, *values = stats.unpack(reply)
print("node", node.rstrip(b"\0").decode())
print("\n".join(f"{name} {value}" for name, value in zip(names, values)))

# Run as every rank by `sparklane fabric bench`: all-reduce over the fabric, in the lane's own image and environment.
# The table is nccl-tests' idea: bytes, microseconds, GB/s of the algorithm, GB/s of the bus.
import os
import time

import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl")
world = dist.get_world_size()
shown = []
if dist.get_rank() == 0:
    print("#       size  time(us)  algbw(GB/s)  busbw(GB/s)", flush=True)
for size in (int(s) for s in os.environ["SPARKLANE_BENCH_SIZES"].split(",")):
    # One buffer, reduced in place: on unified memory every byte of it is host memory too.
    x = torch.ones(size // 4, dtype=torch.float32, device="cuda")
    for _ in range(3):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    torch.cuda.synchronize()
    count = 10
    begin = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    torch.cuda.synchronize()
    secs = (time.perf_counter() - begin) / count
    algorithm = size / secs / 1e9
    bus = algorithm * 2 * (world - 1) / world
    shown.append(bus)
    if dist.get_rank() == 0:
        print(f"{size:12d} {secs * 1e6:10.1f} {algorithm:12.2f} {bus:12.2f}", flush=True)
    if not bool((x == 1).all()):
        raise SystemExit("data came out wrong")
    del x
if dist.get_rank() == 0:
    print(f"# Avg bus bandwidth    : {sum(shown) / len(shown):.4f}", flush=True)
dist.destroy_process_group()

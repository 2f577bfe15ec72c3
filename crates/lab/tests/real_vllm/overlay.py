"""A second vllm package of links to the first, with the two lines changed that Ray needs on a CPU.
usage: overlay.py SITE OUT   (OUT/vllm is made; OUT goes before SITE in PYTHONPATH)"""
import os
import sys

site, out = sys.argv[1], sys.argv[2]
CHANGES = {
    "platforms/cpu.py": ('    dispatch_key: str = "CPU"\n', '    dispatch_key: str = "CPU"\n    ray_device_key: str = "GPU"\n'),
    "distributed/device_communicators/cpu_communicator.py": (
        "{shm_group_identifier}-cpushm",
        "{shm_group_identifier}-{os.uname().nodename}-cpushm",
    ),
}


def link(relative):
    """Links everything of a folder but what is changed below it."""
    os.makedirs(os.path.join(out, relative))
    for name in os.listdir(os.path.join(site, relative)):
        path = f"{relative}/{name}"
        below = [c for c in CHANGES if f"vllm/{c}" == path or f"vllm/{c}".startswith(path + "/")]
        if not below:
            os.symlink(f"/opt/vllm/site/{path}", os.path.join(out, path))
        elif os.path.isdir(os.path.join(site, path)):
            link(path)
        else:
            old, new = CHANGES[below[0]]
            text = open(os.path.join(site, path)).read()
            assert text.count(old) == 1, path
            open(os.path.join(out, path), "w").write(text.replace(old, new))


link("vllm")

"""A rank's place within its node, in the variables by which collective libraries and engines read it.

oneCCL asks an MPI launcher for it unless CCL_PROCESS_LAUNCHER says "none", and takes CCL_LOCAL_RANK and CCL_LOCAL_SIZE
then. torch sets these three itself, but not where it finds variables of an MPI launcher (ProcessGroupXCCL.cpp,
`with_mpirun`). Our ranks always have such variables from elsewhere: mpiexec started what forked them, once a node.
"""

import os


def tell_local_place(local_rank: int, local_world_size: int) -> None:
    """Set the variables for this process, before its first process group."""
    for name in ("LOCAL_RANK", "CCL_LOCAL_RANK"):
        os.environ[name] = str(local_rank)
    for name in ("LOCAL_WORLD_SIZE", "CCL_LOCAL_SIZE"):
        os.environ[name] = str(local_world_size)
    os.environ["CCL_PROCESS_LAUNCHER"] = "none"

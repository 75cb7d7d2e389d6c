-- Module of hpccoll for Lmod: as hpccoll/0.1.0.lua in a folder of MODULEPATH.
-- The folder of the installation, and the MPI module that its mpi4py uses:
local root = "/opt/hpccoll/0.1.0"
local mpi = "mpich"

help("hpccoll: MPI collectives for Python. Start with: srun -n 2 hpccoll doctor")
whatis("Collective operations for supercomputer jobs, proved before they run")
depends_on(mpi)
prepend_path("PATH", pathJoin(root, "bin"))
-- Times of this machine, measured once by "hpccoll tune" for all users.
setenv("HPCCOLL_TUNING", pathJoin(root, "tuning.json"))

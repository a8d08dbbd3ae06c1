#!/bin/sh
# The tests whose numbers could depend on the machine, held to older instructions, with other
# numbers of threads and in other orders: what failed, and pytest's last line, for each.
# Arguments go to pytest: tools/test-cpus.sh -n 2 -x
python=${PYTHON:-.venv/bin/python}
tests="tests/test_instructions.py tests/engines/test_agreement.py tests/engines/test_oracle.py
  tests/engines/test_precision.py tests/engines/test_distributed.py tests/experiments/test_resume.py
  tests/experiments/test_resume_interrupted.py tests/experiments/test_resume_killed.py
  tests/experiments/test_resume_refused.py"
failed=0

# held VARIABLES...: run the tests with these set; ORDER is the seed of their order.
held() {
  echo "order $ORDER, $*"
  env "$@" "$python" -m pytest -q -p no:cacheprovider --randomly-seed="$ORDER" $more $tests \
    >"$log" 2>&1 || failed=1
  grep -E '^(FAILED|ERROR|SKIPPED)' "$log"
  tail -n 1 "$log"
}

more=$*
log=$(mktemp)
trap 'rm -f "$log"' EXIT
ORDER=2 held OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41
ORDER=3 held OMP_NUM_THREADS=2 MKL_NUM_THREADS=2 ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX
ORDER=4 held OMP_NUM_THREADS=4 MKL_NUM_THREADS=4 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
ORDER=5 held OMP_NUM_THREADS=2 MKL_NUM_THREADS=2
exit $failed

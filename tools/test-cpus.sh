#!/usr/bin/env bash
# The tests whose numbers could depend on the machine, held to older instructions, with other
# numbers of threads and in other orders: what failed, and pytest's last line, for each.
# Arguments go to pytest: tools/test-cpus.sh -n 2 -k resumes
set -uo pipefail
python=${PYTHON:-.venv/bin/python}
chosen=(tests/engines/test_{agreement,oracle,distributed}.py
  tests/experiments/test_resume{,_interrupted,_killed,_refused}.py)
more=("$@")
failed=0

# held ORDER THREADS VARIABLES...: all of them with these set, in the order of this seed
held() {
  echo "order $1, $2 threads ${*:3}"
  env OMP_NUM_THREADS="$2" MKL_NUM_THREADS="$2" "${@:3}" "$python" -m pytest -q \
    -p no:cacheprovider --randomly-seed="$1" "${more[@]}" "${chosen[@]}" >"$log" 2>&1 || failed=1
  grep -E '^(FAILED|ERROR|SKIPPED)' "$log"
  tail -n 1 "$log"
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
held 2 1 ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41
held 3 2 ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX
held 4 4 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
held 5 2
exit $failed

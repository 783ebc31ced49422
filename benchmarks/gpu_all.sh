#!/usr/bin/env bash
# All GPU benchmarks in order, each within its seconds; what they say is short, logs and rows lie in OUT.
#
#     OUT=/tmp/out PHOTOS=/tmp/photographs benchmarks/gpu_all.sh                     # everything, 25 minutes
#     OUT=/tmp/out PHOTOS=/tmp/photographs benchmarks/gpu_all.sh kernel:90 train:400  # parts, with their seconds
#     DRY=1 OUT=/tmp/out benchmarks/gpu_all.sh                                        # the logic alone, on the processor
#
# Before: copy photographs to a folder, images/*.jpg and labels/*.txt (YOLO boxes), and pass it as PHOTOS. Without it pictures are
# invented. FOLDER gets the data, in memory where a tmpfs can be mounted; COLD the data of the part cold, which must lie on a disk.
# TRAIN, LOADER, KERNEL and COLDER hold further options of each script. Where the tree is a copy without its repository, say which
# commit it is: FASTDATA_COMMIT=$(git rev-parse --short=12 HEAD). Afterwards append the rows of OUT/*.jsonl to benchmarks/results/,
# and run benchmarks/tables.py --write.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:?must be a folder for results}
folder=${FOLDER:-/tmp/fastdata-gpu}
cold=${COLD:-/tmp/fastdata-cold}
python=${PYTHON:-python3}
export NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:-/tmp/fastdata-numba} PYTHONUNBUFFERED=1

common=(--out "$out")
[ -n "${PHOTOS:-}" ] && common+=(--photos "$PHOTOS")
[ -n "${DRY:-}" ] && common+=(--dry)
mkdir -p "$out" "$folder"
# Data in memory: no disk to wait for, and the page cache holds nothing twice.
if [ -z "${DRY:-}" ] && ! mountpoint -q "$folder"; then
  mount -t tmpfs -o size=40g tmpfs "$folder" 2>/dev/null || echo "no tmpfs: the data lie on a disk, in $folder"
fi
folder=$folder/data

parts=("$@")
[ ${#parts[@]} -eq 0 ] && parts=(kernel:120 loader:330 train:900 cold:150)
failed=0
for part in "${parts[@]}"; do
  name=${part%%:*} seconds=${part##*:} from=$SECONDS
  case $name in
    kernel) options=(--folder "$folder" ${KERNEL:-}) ;;
    loader) options=(--folder "$folder" ${LOADER:-}) ;;
    train) options=(--folder "$folder" ${TRAIN:-}) ;;
    cold) options=(--folder "$cold" ${COLDER:-}) ;;
    *) echo "a part must be kernel, loader, train or cold, with :seconds, got $part"; exit 2 ;;
  esac
  echo "=== $name, at most $seconds s"
  "$python" "$here/gpu_$name.py" "${common[@]}" "${options[@]}" --seconds "$seconds" 2>&1 | tee "$out/gpu_$name.log" | grep -v '^$' || failed=1
  echo "=== $name took $((SECONDS - from)) s"
done
exit $failed

#!/usr/bin/env bash
# Most of docs/benchmarks/bench_gpu.md, in parts of at most eight minutes each:
#
#     scripts/bench_gpu_all.sh FOLDER MODELS PART...
#
# FOLDER: where JSON files and the parts' output go; MODELS: a folder with fill.py and its graphs.
# Parts, in the order in which they should run on one machine (seconds on an H100 with 16 cores):
#
#     tables        every model, both batches and precisions, beside torch          400
#     kernels       products, attention and rows beside cuBLAS and flash, tuned     165 to 215
#     convolutions  those of ResNet-50 beside cuDNN, tuned                          165
#     inductor      those in halves beside torch.compile's max-autotune, too        220 to 290
#     vendor        the same with cuBLAS and cuDNN as candidates                    200
#     tuned         ResNet-50 at batch 16 from nothing (120 wanted)                 115
#     start         from the cache (3 wanted)                                        60 to 160
#     tests         every kernel family on the device                               105
#     sanitizer     compute-sanitizer over tests of kernels, once these are built   220
#     recurrent     LSTMs, GRUs, RNNs beside cuDNN                                   90
#
# A part that fails does not keep the others from running; the exit status says whether one did.
set -u
out=$(realpath -m "${1:?FOLDER}") models=$(realpath -m "${2:?MODELS}")
shift 2
cd "$(dirname "$0")/.." && mkdir -p "$out" || exit 2
export PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
pytest=("$python" -m pytest -q -p no:cacheprovider -W ignore -m gpu)
failed=0

# Of tests; each entry is a process, and these run at once: of eleven some were ended by faults
# of their own.
SANITIZED=(
    "compilation/cuda/test_models compilation/cuda/test_indices kernels/vendor/test_cublas
    kernels/algorithms/gpu/test_row_programs plan/graph/test_cuda_top_k
    plan/rewrites/matmul/test_cuda_slice_batching plan/rewrites/reductions/test_cuda_group_norm
    plan/rewrites/reductions/test_cuda_strided_softmax"
    "kernels/algorithms/gpu/test_blocks kernels/algorithms/gpu/test_gemm
    kernels/triton/test_fp16_functions compilation/cuda/test_segments"
    "kernels/algorithms/gpu/test_convolutions kernels/vendor/test_cudnn kernels/vendor/test_sdpa
    plan/rewrites/reductions/test_cuda_uneven_blocks"
    "kernels/algorithms/gpu/test_attention compilation/cuda/test_masked_values"
    "kernels/algorithms/gpu/test_gated_gemm kernels/algorithms/gpu/test_small_m_gemm
    plan/rewrites/matmul/test_cuda_cell_fusion"
)
sanitized() {
    local pids=() files code=0 some n
    for n in "${!SANITIZED[@]}"; do
        read -r -d "" -a some <<<"${SANITIZED[n]}" || true
        files=("${some[@]/#/tests/}")
        SUPEROPT_TEST_GPU=1 timeout 300 compute-sanitizer --tool memcheck --error-exitcode 9 \
            --target-processes all --log-file "$out/sanitizer_$n.%p.log" \
            "${pytest[@]}" -p no:xdist -o faulthandler_timeout=150 -k "fp16 or fp32" \
            "${files[@]/%/.py}" \
            >"$out/sanitizer_$n.txt" 2>&1 &
        pids+=($!)
    done
    for n in "${!SANITIZED[@]}"; do
        wait "${pids[n]}" || code=1
        echo "${SANITIZED[n]%% *} ...: $(tail -n 1 "$out/sanitizer_$n.txt")"
    done
    grep -h "ERROR SUMMARY" "$out"/sanitizer_*.log | sort | uniq -c
    return "$code"
}

part() {
    case $1 in
    tables) "$python" scripts/bench_gpu.py --models "$models" --out "$out/tables" --batch 16,1 \
        --shard-seconds 480 ;;
    kernels) "$python" scripts/bench_gpu_kernels.py --no-vendor --tune 24 \
        --only products,few,attention,rows --out "$out/kernels.json" ;;
    convolutions) "$python" scripts/bench_gpu_kernels.py --no-vendor --tune 24 \
        --only convolutions --out "$out/convolutions.json" ;;
    inductor) "$python" scripts/bench_gpu_kernels.py --no-vendor --tune 24 --inductor \
        --only convolutions --precision fp16 --out "$out/inductor.json" ;;
    vendor) "$python" scripts/bench_gpu_kernels.py --tune 12 \
        --only convolutions,attention --out "$out/vendor.json" ;;
    tuned) "$python" scripts/bench_gpu.py --models "$models" --out "$out/tuned" --only resnet50 \
        --precision fp16 --batch 16 --tune 24 ;;
    start) "$python" scripts/bench_gpu_start.py --models "$models" --out "$out/start" \
        --only resnet18,bert_base_12l,nasrnn,inception_v3 ;;
    tests) SUPEROPT_TEST_GPU=1 "${pytest[@]}" -n 14 tests/{compilation,kernels,plan} \
        --ignore tests/compilation/cuda/test_machine_code.py ;;  # what needs no GPU
    sanitizer) sanitized ;;
    recurrent) "$python" scripts/bench_gpu_recurrent.py --out "$out/recurrent.json" ;;
    *) echo "there is no part $1" >&2; return 2 ;;
    esac
}

for name in "$@"; do
    begin=$SECONDS
    part "$name" >"$out/$name.txt" 2>&1
    code=$?
    tail -n 40 "$out/$name.txt"
    echo "== $name: exit $code, $((SECONDS - begin)) s"
    [ "$code" -eq 0 ] || failed=1
done
exit "$failed"

#include "decoder.h"

#include <cstring>

#include "attend.h"
#include "cache_write.h"
#include "paths.h"
#include "quantized_buffer.h"

namespace slipstream {
namespace {

// Scratch memory of a step, cut into what the stages hand on.
struct Buffers {
    float* wide;       // [N, qkv or 2 * intermediate]
    float* narrow;     // [N, H * D]; of one row each, what is normed before it is quantised
    int8_t* values;    // [N, K]
    float* scales;     // [N, K / 32]
    int32_t* sums;     // [N, K / 32]

    QuantizedRow row(int index, int size) const {
        const size_t groups = static_cast<size_t>(index) * (size / kGroup);
        return {values + groups * kGroup, scales + groups, sums + groups};
    }
    Rows rows(int num_rows) const { return {values, scales, sums, num_rows}; }
};

int larger(int a, int b) { return a > b ? a : b; }

struct Widths {
    int qkv, attended, wide, narrow, quantized;

    explicit Widths(const Shape& shape)
        : qkv((shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim),
          attended(shape.num_heads * shape.head_dim),
          wide(larger(qkv, 2 * shape.intermediate_size)),
          narrow(larger(attended, larger(shape.hidden_size, shape.intermediate_size))),
          quantized(narrow) {}
};

Buffers cut(const Widths& widths, int num_rows, uint8_t* scratch, size_t* total = nullptr) {
    const size_t rows = static_cast<size_t>(num_rows), groups = rows * (widths.quantized / kGroup + 1);
    const size_t sizes[] = {aligned(rows * widths.wide * sizeof(float)), aligned(rows * widths.narrow * sizeof(float)),
                            aligned(groups * kGroup), aligned(groups * sizeof(float)), aligned(groups * sizeof(int32_t))};
    size_t starts[6] = {0};
    for (int i = 0; i < 5; ++i) starts[i + 1] = starts[i] + sizes[i];
    if (total != nullptr) *total = starts[5];
    return {reinterpret_cast<float*>(scratch), reinterpret_cast<float*>(scratch + starts[1]),
            reinterpret_cast<int8_t*>(scratch + starts[2]), reinterpret_cast<float*>(scratch + starts[3]),
            reinterpret_cast<int32_t*>(scratch + starts[4])};
}

class Pass {
public:
    Pass(Workers& workers, Path path, const Shape& shape, const StepRows& step, float* x, uint8_t* scratch)
        : workers_(workers),
          linear_(linear_of(path)),
          attention_(attention_of(path)),
          functions_(row_functions_of(path)),
          shape_(shape),
          step_(step),
          widths_(shape),
          buffers_(cut(widths_, step.num_rows, scratch)),
          x_(x) {}

    void run(const Layer& layer) {
        const int hidden = shape_.hidden_size;
        norm(layer.attention_norm);
        product(layer.qkv, layer.qkv_bits, widths_.qkv, hidden, {buffers_.wide, widths_.qkv, layer.qkv_bias});
        each_row([&](int row) { rotate_and_write(layer, row); });
        attend(workers_, attention_, attention_step(), {layer.cache, shape_.is_bfloat16_cache != 0}, buffers_.wide,
               widths_.qkv, buffers_.narrow);
        each_row([&](int row) {
            functions_.quantize(buffers_.narrow + at(row, widths_.attended), widths_.attended,
                                buffers_.row(row, widths_.attended));
        });
        product(layer.output, layer.output_bits, hidden, widths_.attended, {x_, hidden, nullptr, true});
        norm(layer.mlp_norm);
        product(layer.gate_up, layer.gate_up_bits, 2 * shape_.intermediate_size, hidden,
                {buffers_.wide, 2 * shape_.intermediate_size});
        each_row([&](int row) {
            float* gate_up = buffers_.wide + at(row, 2 * shape_.intermediate_size);
            functions_.silu_mul(gate_up, shape_.intermediate_size, gate_up);
            functions_.quantize(gate_up, shape_.intermediate_size, buffers_.row(row, shape_.intermediate_size));
        });
        product(layer.down, layer.down_bits, hidden, shape_.intermediate_size, {x_, hidden, nullptr, true});
        if (layer.tap != nullptr) std::memcpy(layer.tap, x_, at(step_.num_rows, hidden) * sizeof(float));
    }

private:
    static size_t at(int row, int width) { return static_cast<size_t>(row) * static_cast<size_t>(width); }

    template <typename Function>
    void each_row(const Function& function) {
        workers_.run([&](int part, int num_parts) {
            const Share rows = share_of(step_.num_rows, part, num_parts);
            for (int row = rows.first; row < rows.last; ++row) function(row);
        });
    }

    void norm(const float* weight) {
        const int hidden = shape_.hidden_size;
        each_row([&](int row) {
            float* normed = buffers_.narrow + at(row, hidden);
            functions_.rms_norm(x_ + at(row, hidden), weight, hidden, shape_.rms_norm_eps, normed);
            functions_.quantize(normed, hidden, buffers_.row(row, hidden));
        });
    }

    void product(const uint8_t* records, int bits, int num_outputs, int num_inputs, const Output& output) {
        const Weight weight{records, static_cast<Bits>(bits), num_outputs, num_inputs};
        workers_.run([&](int part, int num_parts) {
            const Share blocks = share_of(weight.num_blocks(), part, num_parts);
            linear_(weight, buffers_.rows(step_.num_rows), blocks.first, blocks.last, output);
        });
    }

    void rotate_and_write(const Layer& layer, int row) {
        const int width = shape_.head_dim, num_rotated = shape_.num_heads + shape_.num_kv_heads;
        float* qkv = buffers_.wide + at(row, widths_.qkv);
        for (int head = 0; head < num_rotated; ++head) {
            float* x = qkv + at(head, width);
            if (layer.qk_norm != nullptr) {
                functions_.rms_norm(x, layer.qk_norm + at(head, width), width, shape_.rms_norm_eps, x);
            }
            functions_.rotate(x, step_.cosine + at(row, width), step_.sine + at(row, width), width);
        }
        write_slot(layer.cache, shape_.is_bfloat16_cache != 0, step_.slots[row], qkv + at(shape_.num_heads, width),
                   at(2 * shape_.num_kv_heads, width));
    }

    AttentionStep attention_step() const {
        return {reinterpret_cast<const RequestRows*>(step_.requests),
                step_.block_ids,
                step_.num_requests,
                step_.block_size,
                shape_.num_heads,
                shape_.num_kv_heads,
                shape_.head_dim,
                step_.is_causal != 0};
    }

    Workers& workers_;
    LinearPath linear_;
    AttentionPath attention_;
    const RowFunctions& functions_;
    const Shape& shape_;
    const StepRows& step_;
    Widths widths_;
    Buffers buffers_;
    float* x_;
};

}  // namespace

int64_t scratch_bytes(const Shape& shape, int num_rows) {
    size_t total = 0;
    cut(Widths(shape), num_rows, nullptr, &total);
    return static_cast<int64_t>(total);
}

void run_layers(Workers& workers, int path, const Shape& shape, const Layer* layers, const StepRows& step, float* x,
                uint8_t* scratch) {
    Pass pass(workers, static_cast<Path>(path), shape, step, x, scratch);
    for (int i = 0; i < shape.num_layers; ++i) pass.run(layers[i]);
}

}  // namespace slipstream

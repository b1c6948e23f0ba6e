#include "decoder.h"

#include <cstring>

#include "attend.h"
#include "cache_write.h"
#include "quantized_buffer.h"
#include "spread.h"

namespace slipstream {
namespace {

// Scratch memory of a step, cut into what the stages hand on.
struct Buffers {
    float* wide;         // [N, qkv or 2 * intermediate]
    float* narrow;       // [N, H * D]; of one row each, what is normed before it is quantised
    uint8_t* quantized;  // rows of the widest product's inputs
};

int larger(int a, int b) { return a > b ? a : b; }

struct Widths {
    int qkv, attended, wide, narrow;

    explicit Widths(const Shape& shape)
        : qkv((shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim),
          attended(shape.num_heads * shape.head_dim),
          wide(larger(qkv, 2 * shape.intermediate_size)),
          narrow(larger(attended, larger(shape.hidden_size, shape.intermediate_size))) {}
};

Buffers cut(const Widths& widths, int num_rows, uint8_t* scratch) {
    const size_t wide = float_bytes(num_rows, widths.wide), narrow = float_bytes(num_rows, widths.narrow);
    return {reinterpret_cast<float*>(scratch), reinterpret_cast<float*>(scratch + wide), scratch + wide + narrow};
}

class Pass {
public:
    Pass(Workers& workers, Path path, const Shape& shape, const StepRows& step, float* x, uint8_t* scratch)
        : workers_(workers),
          path_(path),
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
            functions_.quantize(buffers_.narrow + place(row, widths_.attended), widths_.attended,
                                quantized(widths_.attended).row(row));
        });
        product(layer.output, layer.output_bits, hidden, widths_.attended, {x_, hidden, nullptr, true});
        norm(layer.mlp_norm);
        product(layer.gate_up, layer.gate_up_bits, 2 * shape_.intermediate_size, hidden,
                {buffers_.wide, 2 * shape_.intermediate_size});
        each_row([&](int row) {
            float* gate_up = buffers_.wide + place(row, 2 * shape_.intermediate_size);
            functions_.silu_mul(gate_up, shape_.intermediate_size, gate_up);
            functions_.quantize(gate_up, shape_.intermediate_size, quantized(shape_.intermediate_size).row(row));
        });
        product(layer.down, layer.down_bits, hidden, shape_.intermediate_size, {x_, hidden, nullptr, true});
        if (layer.tap != nullptr) std::memcpy(layer.tap, x_, place(step_.num_rows, hidden) * sizeof(float));
    }

private:
    template <typename Function>
    void each_row(const Function& function) {
        slipstream::each_row(workers_, step_.num_rows, function);
    }

    QuantizedBuffer quantized(int width) const { return {buffers_.quantized, step_.num_rows, width}; }

    void norm(const float* weight) {
        const int hidden = shape_.hidden_size;
        each_row([&](int row) {
            float* normed = buffers_.narrow + place(row, hidden);
            functions_.rms_norm(x_ + place(row, hidden), weight, hidden, shape_.rms_norm_eps, normed);
            functions_.quantize(normed, hidden, quantized(hidden).row(row));
        });
    }

    void product(const uint8_t* records, int bits, int num_outputs, int num_inputs, const Output& output) {
        multiply(workers_, path_, {records, static_cast<Bits>(bits), num_outputs, num_inputs},
                 quantized(num_inputs).rows(), output);
    }

    void rotate_and_write(const Layer& layer, int row) {
        const int width = shape_.head_dim, num_rotated = shape_.num_heads + shape_.num_kv_heads;
        float* qkv = buffers_.wide + place(row, widths_.qkv);
        for (int head = 0; head < num_rotated; ++head) {
            float* x = qkv + place(head, width);
            if (layer.qk_norm != nullptr) {
                functions_.rms_norm(x, layer.qk_norm + place(head, width), width, shape_.rms_norm_eps, x);
            }
            functions_.rotate(x, step_.cosine + place(row, width), step_.sine + place(row, width), width);
        }
        write_slot(layer.cache, shape_.is_bfloat16_cache != 0, step_.slots[row], qkv + place(shape_.num_heads, width),
                   place(2 * shape_.num_kv_heads, width));
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
    Path path_;
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
    const Widths widths(shape);
    return static_cast<int64_t>(float_bytes(num_rows, widths.wide) + float_bytes(num_rows, widths.narrow) +
                                QuantizedBuffer::bytes(num_rows, widths.narrow));
}

void run_layers(Workers& workers, int path, const Shape& shape, const Layer* layers, const StepRows& step, float* x,
                uint8_t* scratch) {
    Pass pass(workers, static_cast<Path>(path), shape, step, x, scratch);
    for (int i = 0; i < shape.num_layers; ++i) pass.run(layers[i]);
}

}  // namespace slipstream

#include "drafter.h"

#include "cache_write.h"
#include "quantized_buffer.h"
#include "spread.h"

namespace slipstream {
namespace {

int key_value_size(const ContextShape& shape) { return 2 * shape.num_kv_heads * shape.head_dim; }

float dot(const float* a, const float* b, int size) {
    float sum = 0.0f;
    for (int i = 0; i < size; ++i) sum += a[i] * b[i];
    return sum;
}

}  // namespace

int64_t context_bytes(const ContextShape& shape) {
    const int rows = shape.num_rows;
    return static_cast<int64_t>(QuantizedBuffer::bytes(rows, shape.num_taps * shape.target_size) +
                                QuantizedBuffer::bytes(rows, shape.hidden_size) +
                                float_bytes(rows, shape.hidden_size) +
                                float_bytes(rows, key_value_size(shape)));
}

void write_context(Workers& workers, int path, const ContextShape& shape, const uint8_t* fc, const float* hidden_norm,
                   const ContextLayer* layers, const ContextRows& rows, uint8_t* scratch) {
    const int num_rows = shape.num_rows, hidden = shape.hidden_size, tapped = shape.num_taps * shape.target_size;
    const int width = key_value_size(shape), head_dim = shape.head_dim;
    const RowFunctions& functions = row_functions_of(static_cast<Path>(path));
    const QuantizedBuffer inputs(scratch, num_rows, tapped);
    scratch += QuantizedBuffer::bytes(num_rows, tapped);
    const QuantizedBuffer normed(scratch, num_rows, hidden);
    scratch += QuantizedBuffer::bytes(num_rows, hidden);
    float* const features = reinterpret_cast<float*>(scratch);
    float* const key_value = reinterpret_cast<float*>(scratch + float_bytes(num_rows, hidden));

    each_row(workers, num_rows, [&](int row) {
        for (int tap = 0; tap < shape.num_taps; ++tap) {
            functions.quantize(rows.taps[tap] + place(row, shape.target_size), shape.target_size,
                               inputs.row(row, tap * shape.target_size));
        }
    });
    multiply(workers, static_cast<Path>(path), {fc, static_cast<Bits>(shape.fc_bits), hidden, tapped}, inputs.rows(),
             {features, hidden});
    each_row(workers, num_rows, [&](int row) {
        float* x = features + place(row, hidden);
        functions.rms_norm(x, hidden_norm, hidden, shape.rms_norm_eps, x);
        functions.quantize(x, hidden, normed.row(row));
    });
    for (int i = 0; i < shape.num_layers; ++i) {
        const ContextLayer& layer = layers[i];
        multiply(workers, static_cast<Path>(path), {layer.key_value, static_cast<Bits>(layer.bits), width, hidden},
                 normed.rows(), {key_value, width});
        each_row(workers, num_rows, [&](int row) {
            float* x = key_value + place(row, width);
            for (int head = 0; head < shape.num_kv_heads; ++head, x += head_dim) {
                if (layer.key_norm != nullptr) {
                    functions.rms_norm(x, layer.key_norm, head_dim, shape.rms_norm_eps, x);
                }
                functions.rotate(x, rows.cosine + place(row, head_dim), rows.sine + place(row, head_dim), head_dim);
            }
            write_slot(layer.cache, shape.is_bfloat16_cache != 0, rows.slots[row], key_value + place(row, width),
                       static_cast<size_t>(width));
        });
    }
}

int64_t block_bytes(const BlockShape& shape) {
    const int rows = shape.num_requests * shape.num_drafts;
    return static_cast<int64_t>(QuantizedBuffer::bytes(rows, shape.hidden_size) +
                                float_bytes(rows, shape.vocab_size) +
                                QuantizedBuffer::bytes(shape.num_requests, shape.rank));
}

void draw_blocks(Workers& workers, int path, const BlockShape& shape, const BlockWeights& weights,
                 const BlockInputs& given, int64_t* drafts, float* scores, uint8_t* scratch) {
    const int num_requests = shape.num_requests, num_drafts = shape.num_drafts, num_rows = num_requests * num_drafts;
    const int size = shape.hidden_size, vocab_size = shape.vocab_size, rank = shape.rank;
    const RowFunctions& functions = row_functions_of(static_cast<Path>(path));
    const QuantizedBuffer inputs(scratch, num_rows, size);
    scratch += QuantizedBuffer::bytes(num_rows, size);
    float* const logits = reinterpret_cast<float*>(scratch);
    scratch += float_bytes(num_rows, vocab_size);
    const QuantizedBuffer tokens(scratch, num_requests, rank);

    each_row(workers, num_rows, [&](int row) { functions.quantize(given.hidden + place(row, size), size, inputs.row(row)); });
    multiply(workers, static_cast<Path>(path), {weights.head, static_cast<Bits>(shape.head_bits), vocab_size, size},
             inputs.rows(), {logits, vocab_size});
    for (int k = 0; k < num_drafts; ++k) {
        const auto before = [&](int request) {
            return k == 0 ? given.anchors[request] : drafts[place(request, num_drafts) + k - 1];
        };
        float* const of_draft = logits + place(k, vocab_size);
        const ptrdiff_t stride = static_cast<ptrdiff_t>(num_drafts) * vocab_size;
        if (rank > 0) {
            for (int i = 0; i < num_requests; ++i) {
                functions.quantize(weights.token_table + before(i) * rank, rank, tokens.row(i));
            }
            multiply(workers, static_cast<Path>(path),
                     {weights.token_bias, static_cast<Bits>(shape.bias_bits), vocab_size, rank}, tokens.rows(),
                     {of_draft, stride, nullptr, true});
        }
        each_row(workers, num_requests, [&](int request) {
            const size_t draft = place(request, num_drafts) + static_cast<size_t>(k);
            if (shape.has_confidence != 0) {
                float score = dot(given.hidden + draft * static_cast<size_t>(size), weights.confidence, size);
                if (shape.sees_token != 0) {
                    score += dot(weights.token_table + before(request) * rank, weights.confidence + size, rank);
                }
                scores[draft] = score + shape.confidence_bias;
            }
            const float* choices = of_draft + request * stride;
            const double temperature = given.temperatures[request];
            int chosen = functions.first_argmax(choices, vocab_size);
            if (chosen >= 0 && temperature > 0.0) {
                chosen = functions.draw(choices, vocab_size, chosen, temperature, given.keys[draft], weights.constants);
            }
            drafts[draft] = weights.target_ids[chosen < 0 ? 0 : chosen];  // a block of NaNs drafts something harmless
        });
    }
}

}  // namespace slipstream

#include "ends.h"

#include "half.h"
#include "quantized_buffer.h"
#include "spread.h"

namespace slipstream {
void embed(const Weight& weight, const int64_t* ids, int num_rows, float* x) {
    const int num_groups = weight.num_groups();
    for (int row = 0; row < num_rows; ++row) {
        const int o = static_cast<int>(ids[row] % kBlock);
        const uint8_t* record = weight.block(static_cast<int>(ids[row] / kBlock));
        for (int g = 0; g < num_groups; ++g, record += record_bytes(weight.bits), x += kGroup) {
            const float scale = half_at(record, o);
            if (weight.bits == Bits::four) {
                const float minimum = half_at(record + kHalves, o);
                for (int p = 0; p < 4; ++p) {
                    const uint8_t* bytes = record + 2 * kHalves + 64 * p + 4 * o;
                    for (int i = 0; i < 4; ++i) {
                        x[8 * p + i] = static_cast<float>(bytes[i] & 15) * scale + minimum;
                        x[8 * p + 4 + i] = static_cast<float>(bytes[i] >> 4) * scale + minimum;
                    }
                }
            } else {
                for (int p = 0; p < 8; ++p) {
                    const uint8_t* bytes = record + kHalves + 64 * p + 4 * o;
                    for (int i = 0; i < 4; ++i) x[4 * p + i] = static_cast<float>(bytes[i] - 128) * scale;
                }
            }
        }
    }
}

int64_t project_bytes(int num_rows, int hidden_size) {
    return static_cast<int64_t>(QuantizedBuffer::bytes(num_rows, hidden_size) +
                                place(num_rows, hidden_size) * sizeof(float));
}

void project(Workers& workers, int path, const Weight& weight, const float* norm, float eps, const float* x, int num_rows,
             const Output& output, uint8_t* scratch) {
    const int hidden = weight.num_inputs;
    const RowFunctions& functions = row_functions_of(static_cast<Path>(path));
    const QuantizedBuffer inputs(scratch, num_rows, hidden);
    float* const normed = reinterpret_cast<float*>(scratch + QuantizedBuffer::bytes(num_rows, hidden));
    each_row(workers, num_rows, [&](int row) {
        float* to = normed + place(row, hidden);
        functions.rms_norm(x + place(row, hidden), norm, hidden, eps, to);
        functions.quantize(to, hidden, inputs.row(row));
    });
    multiply(workers, static_cast<Path>(path), weight, inputs.rows(), output);
}

void normalize(Workers& workers, int path, const float* x, const float* norm, int num_rows, int hidden_size, float eps,
               float* to) {
    const RowFunctions& functions = row_functions_of(static_cast<Path>(path));
    each_row(workers, num_rows, [&](int row) {
        functions.rms_norm(x + place(row, hidden_size), norm, hidden_size, eps, to + place(row, hidden_size));
    });
}

}  // namespace slipstream

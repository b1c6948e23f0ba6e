#include "pack.h"

#include <cstring>

namespace slipstream {
namespace {

void put_half(uint8_t* record, int index, uint16_t half) { std::memcpy(record + 2 * index, &half, sizeof half); }

}  // namespace

void pack_four(const uint8_t* q, const uint16_t* scales, const uint16_t* minima, int num_outputs, int num_inputs,
               uint8_t* records) {
    const Weight weight{records, Bits::four, num_outputs, num_inputs};
    const int num_groups = weight.num_groups();
    std::memset(records, 0, record_bytes(Bits::four) * num_groups * weight.num_blocks());
    for (int n = 0; n < num_outputs; ++n) {
        uint8_t* record = const_cast<uint8_t*>(weight.block(n / kBlock));
        const int o = n % kBlock;
        for (int g = 0; g < num_groups; ++g, record += record_bytes(Bits::four)) {
            put_half(record, o, scales[static_cast<size_t>(n) * num_groups + g]);
            put_half(record + kHalves, o, minima[static_cast<size_t>(n) * num_groups + g]);
            const uint8_t* from = q + static_cast<size_t>(n) * num_inputs + g * kGroup;
            for (int p = 0; p < 4; ++p) {
                for (int i = 0; i < 4; ++i) {
                    record[2 * kHalves + 64 * p + 4 * o + i] =
                        static_cast<uint8_t>(from[8 * p + i] | from[8 * p + 4 + i] << 4);
                }
            }
        }
    }
}

void pack_eight(const int8_t* q, const uint16_t* scales, int num_outputs, int num_inputs, uint8_t* records) {
    const Weight weight{records, Bits::eight, num_outputs, num_inputs};
    const int num_groups = weight.num_groups();
    std::memset(records, 0, record_bytes(Bits::eight) * num_groups * weight.num_blocks());
    for (int n = 0; n < num_outputs; ++n) {
        uint8_t* record = const_cast<uint8_t*>(weight.block(n / kBlock));
        const int o = n % kBlock;
        for (int g = 0; g < num_groups; ++g, record += record_bytes(Bits::eight)) {
            put_half(record, o, scales[static_cast<size_t>(n) * num_groups + g]);
            const int8_t* from = q + static_cast<size_t>(n) * num_inputs + g * kGroup;
            for (int p = 0; p < 8; ++p) {
                for (int i = 0; i < 4; ++i) {
                    record[kHalves + 64 * p + 4 * o + i] = static_cast<uint8_t>(from[4 * p + i] + 128);
                }
            }
        }
    }
}

}  // namespace slipstream

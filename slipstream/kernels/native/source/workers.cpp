#include "workers.h"

namespace slipstream {
namespace {

constexpr int kLooks = 20000;  // some hundred microseconds, as Python takes between two calls of a step

void rest() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

}  // namespace

Workers::Workers(int num_threads) {
    for (int part = 1; part < num_threads; ++part) threads_.emplace_back([this, part] { serve(part); });
}

Workers::~Workers() {
    is_over_.store(true);
    round_.fetch_add(1);
    round_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Workers::run(Work work, void* context) {
    if (threads_.empty()) {
        work(context, 0, 1);
        return;
    }
    work_ = work;
    context_ = context;
    num_left_.store(static_cast<int>(threads_.size()));
    round_.fetch_add(1);
    round_.notify_all();
    work(context, 0, count());
    for (int looks = 0; num_left_.load() != 0; ++looks) {
        if (looks < kLooks) {
            rest();
        } else {
            const int left = num_left_.load();
            if (left != 0) num_left_.wait(left);
        }
    }
}

void Workers::serve(int part) {
    uint32_t seen = 0;
    while (true) {
        for (int looks = 0; round_.load() == seen; ++looks) {
            if (looks < kLooks) {
                rest();
            } else {
                round_.wait(seen);
            }
        }
        seen = round_.load();
        if (is_over_.load()) return;
        work_(context_, part, count());
        if (num_left_.fetch_sub(1) == 1) num_left_.notify_one();
    }
}

}  // namespace slipstream

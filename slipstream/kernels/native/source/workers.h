// Threads that share one piece of work at a time. A step of a small model gives them hundreds of pieces of a few dozen
// microseconds, so they look for the next one a while before they sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace slipstream {

class Workers {
public:
    using Work = void (*)(void* context, int part, int num_parts);

    // The calling thread is one of them, so this starts `num_threads - 1`.
    explicit Workers(int num_threads);
    ~Workers();
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    int count() const { return static_cast<int>(threads_.size()) + 1; }

    // Calls `work` once for every part in [0, count()), each on a thread of its own; returns when all are done. One caller
    // at a time.
    void run(Work work, void* context);

    template <typename Function>
    void run(const Function& function) {
        run([](void* context, int part, int num_parts) { (*static_cast<const Function*>(context))(part, num_parts); },
            const_cast<void*>(static_cast<const void*>(&function)));
    }

private:
    void serve(int part);

    std::vector<std::thread> threads_;
    std::atomic<uint32_t> round_{0};
    std::atomic<int> num_left_{0};
    std::atomic<bool> is_over_{false};
    Work work_ = nullptr;
    void* context_ = nullptr;
};

// The items [first, last) of `num_items` that a part takes.
struct Share {
    int first, last;
};

inline Share share_of(int num_items, int part, int num_parts) {
    return {static_cast<int>(static_cast<int64_t>(num_items) * part / num_parts),
            static_cast<int>(static_cast<int64_t>(num_items) * (part + 1) / num_parts)};
}

}  // namespace slipstream

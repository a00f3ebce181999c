// SPDX-License-Identifier: Apache-2.0
// The trainer's tensors, addressed by fragment. The memory belongs to the caller of Boundary and is
// touched only on the trainer's thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "yeto/base/result.h"
#include "yeto/sync/boundary/flat_values.h"
#include "yeto/tensor/layout.h"

namespace yeto::sync {

// One trainable tensor: contiguous f32 values, written in place.
struct TensorView {
  std::string name;  // canonical, the same on every island
  std::vector<std::uint64_t> shape;
  std::span<float> values;
};

namespace client {

class Tensors {
 public:
  // `views` in the order of layout.tensors. `layout` must outlive the object.
  Tensors(std::vector<TensorView> views, const Layout& layout);

  std::uint64_t values(std::uint32_t fragment) const { return layout_.fragments[fragment].values; }
  // Copies the fragment's values into a flat vector of as many.
  void gather(std::uint32_t fragment, std::span<float> out) const;
  // Calls f(local, first) for all of the fragment's values, in place, in runs of at most
  // kTileValues that follow one another: `local` are values [first, first + size) of its flat
  // vector.
  template <class F>
  void each_tile(std::uint32_t fragment, F&& f) const {
    for (const Piece& piece : layout_.fragments[fragment].pieces) {
      const std::span<float> whole = views_[piece.tensor].values.subspan(piece.first, piece.count);
      client::each_tile(piece.count, [&](std::uint64_t first, std::size_t count) {
        f(whole.subspan(first, count), piece.offset + first);
      });
    }
  }

  // Indices of the tensors that hold values of the fragment, ascending.
  const std::vector<std::uint32_t>& of_fragment(std::uint32_t fragment) const {
    return tensors_of_[fragment];
  }
  // Those of them that also hold values of other fragments: a write leaves a part of them as it is.
  const std::vector<std::uint32_t>& shared_of_fragment(std::uint32_t fragment) const {
    return shared_of_[fragment];
  }

 private:
  std::vector<TensorView> views_;
  const Layout& layout_;
  std::vector<std::vector<std::uint32_t>> tensors_of_;
  std::vector<std::vector<std::uint32_t>> shared_of_;
};

}  // namespace client

// kModel, naming the tensor: no tensor, an empty or doubled name, a shape that does not have as
// many values as the memory, memory that overlaps another tensor's.
Status check_tensors(const std::vector<TensorView>& views);

}  // namespace yeto::sync

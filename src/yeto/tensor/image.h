// SPDX-License-Identifier: Apache-2.0
// An image: the values of a fragment as the bytes that travel (how they are made: codec room). Here
// is what a reader of images needs without making any: sizes, what a good image is, and values out
// of the middle of a q4 image. Pure and thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/tensor/dtype.h"

namespace yeto {

// Bytes of the image of `values` values.
std::uint64_t image_bytes(CodecId codec, std::uint64_t values);
// kData if the image's size is not that of `values` values, or a scale of q4 is negative or not
// finite.
Status check_image(CodecId codec, ByteView image, std::uint64_t values);
// False if a scale of a q4 image of the right size is not finite.
bool q4_scales_finite(ByteView image);
// Values [first, first + out.size()) of a q4 image that check_image has passed.
void decode_q4_values(ByteView image, std::uint64_t first, std::span<float> out);

}  // namespace yeto

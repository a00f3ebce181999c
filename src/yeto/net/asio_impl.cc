// SPDX-License-Identifier: Apache-2.0
// Asio's own code, compiled once (ASIO_SEPARATE_COMPILATION).
#include <asio/impl/src.hpp>

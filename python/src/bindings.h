// SPDX-License-Identifier: Apache-2.0
// One function per bound room; module.cc calls them.
#pragma once

#include <nanobind/nanobind.h>

namespace yeto::python {

void bind_boundary(nanobind::module_& module);
void bind_sim(nanobind::module_& module);

}  // namespace yeto::python

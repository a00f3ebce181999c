// SPDX-License-Identifier: Apache-2.0
// yeto._core: the native rooms as Python sees them. No logic here or in the other files of this
// folder; what they bind is documented in yeto/_core.pyi.
#include <nanobind/nanobind.h>

#include "bindings.h"

NB_MODULE(_core, module) {
  module.doc() = "Native parts of Yeto.";
  module.def(
      "version", [] { return YETO_VERSION; }, "The version of Yeto this module was built from.");
  yeto::python::bind_boundary(module);
  yeto::python::bind_sim(module);
}

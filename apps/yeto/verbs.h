// SPDX-License-Identifier: Apache-2.0
// One function for each verb: argv[0] is the verb's name, the rest its arguments. Returns the exit
// code.
#pragma once

namespace yeto::apps {

int run_launch(int argc, char** argv);
int run_status(int argc, char** argv);
int run_logs(int argc, char** argv);
int run_stop_run(int argc, char** argv);
int run_down(int argc, char** argv);
int run_syncer(int argc, char** argv);
int run_learner(int argc, char** argv);
int run_sim(int argc, char** argv);

// Started by other verbs, not shown in the overview.
int run_controller(int argc, char** argv);
int run_finish(int argc, char** argv);

}  // namespace yeto::apps

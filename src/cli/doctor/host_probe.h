// Reads the facts of `baton doctor` from the machine. Writes nothing, and needs no right beyond a
// server's own. Takes as long as a look at /proc, but for the measurements (below a second) and the
// GPU driver (at most 2.5 s).
#ifndef BATON_CLI_DOCTOR_HOST_PROBE_H_
#define BATON_CLI_DOCTOR_HOST_PROBE_H_

#include <string>
#include <utility>
#include <vector>

#include "src/cli/doctor/host_facts.h"
#include "src/tls/tls_files.h"

namespace baton::cli {

// The things to look at beside the machine itself.
struct ProbePlan {
  // Where /proc, /sys and /run are; "" but in tests.
  std::string root;
  std::vector<std::pair<std::string, std::string>> ports;  // flag, "host:port"
  std::string model;                                       // "" = not given
  tls::TlsFiles tls;
  std::string secret_file;
};

// Everything. One thread, before any other of the process was started: the GPU driver is asked by a
// child process, which may hang or die without harm.
HostFacts ProbeHost(const ProbePlan& plan);

// The parts that are files below `root`; for tests.
void ProbeProcFiles(const std::string& root, HostFacts* facts);

}  // namespace baton::cli

#endif  // BATON_CLI_DOCTOR_HOST_PROBE_H_

// WeightLoadReport: the bytes and the time that loading a model's weights to its devices took.
// Pure; any thread.
#ifndef BATON_MODEL_WEIGHT_LOAD_REPORT_H_
#define BATON_MODEL_WEIGHT_LOAD_REPORT_H_

#include <cstddef>
#include <string>

namespace baton::model {

// The report. One thread waits for the file, then has rows packed, then waits for the link.
struct WeightLoadReport {
  size_t file_bytes = 0;    // of the tensors
  size_t direct_bytes = 0;  // of them past the page cache
  size_t device_bytes = 0;  // copied to all devices
  double seconds = 0;
  double file_wait_seconds = 0;
  double link_wait_seconds = 0;
  double link_bytes_per_second = 0;  // of all devices' links

  // The copied bytes as a share of those that the links could have copied in this time; 0 when
  // nothing was copied.
  double ShareOfLink() const;
  // "16.1 GB in 3.20 s (5.03 GB/s, 18 % of the link's 27.30); waited 0.40 s for the file
  // (O_DIRECT), packed for 2.70 s, waited 0.10 s for the link"
  std::string Text() const;
};

}  // namespace baton::model

#endif  // BATON_MODEL_WEIGHT_LOAD_REPORT_H_

// A golden model whose q, k and v are one tensor of each layer, as some writers of files join them.
#ifndef BATON_TESTS_MODEL_JOINED_TENSORS_H_
#define BATON_TESTS_MODEL_JOINED_TENSORS_H_

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/model/changed_file.h"

namespace baton::model {

// Puts attn_q|k|v.KIND of every layer that has them into one tensor, attn_qkv.KIND.
inline void JoinQkv(const std::string& kind, ChangedFile& file) {
  const std::string end = ".attn_q." + kind;
  std::vector<std::string> layers;
  for (const TensorCopy& tensor : file.tensors()) {
    if (!tensor.name.ends_with(end)) continue;
    layers.push_back(tensor.name.substr(0, tensor.name.size() - end.size()));
  }
  EXPECT_FALSE(layers.empty()) << kind;
  for (const std::string& layer : layers) {
    TensorCopy& q = file.Find(layer + end);
    for (const char* part : {".attn_k.", ".attn_v."}) {
      TensorCopy& other = file.Find(layer + part + kind);
      q.data.insert(q.data.end(), other.data.begin(), other.data.end());
      q.dims.back() += other.dims.back();
      other.name.clear();
    }
    q.name = layer + ".attn_qkv." + kind;
  }
  std::erase_if(file.tensors(), [](const TensorCopy& tensor) { return tensor.name.empty(); });
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_JOINED_TENSORS_H_

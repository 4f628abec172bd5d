// Lists of modules that are not quantised, in folders whose tensors have other names than those of
// text models.
#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/model/folder_error.h"
#include "src/model/hf_folder.h"
#include "src/model/hf_json.h"
#include "tests/model/packed_folder.h"
#include "tests/model/test_model.h"

namespace baton::model {
namespace {

using ::testing::HasSubstr;

TEST(HfPackedNamesTest, ListsOfModulesHaveTheNamesOfTheFolder) {
  struct Case {
    const char* folder;
    const char* end;   // of the packed matrices
    const char* name;  // of the first of them here
    std::vector<const char*> plain;
    std::vector<const char*> others;  // name nothing that is packed
  };
  for (const Case& test : {
           Case{"tiny_nemotron_h",
                "layers.1.mixer.up_proj.weight",
                "model.layers.1.mixer.up_proj",
                {"backbone.layers.1.mixer.up_proj", "backbone.layers.1.*", "backbone.*",
                 "mixer.up_proj"},
                {"backbone.layers.4.*", "backbone.embeddings", "backbone.layers.1.mixer"}},
           Case{"tiny_gemma4_dense",
                "layers.2.mlp.up_proj.weight",
                "model.layers.2.mlp.up_proj",
                {"model.language_model.layers.2.mlp.up_proj", "model.language_model.layers.2.*",
                 "language_model.model.layers.2.mlp.up_proj"},
                {"model.embed_vision.*", "model.vision_tower.layers.2.mlp.up_proj",
                 "model.language_model.layers.3.*"}},
           Case{"tiny_qwen35",
                "mtp.layers.0.mlp.up_proj.weight",
                "model.layers.5.mlp.up_proj",
                {"mtp.layers.0.mlp.up_proj", "mtp.layers.0.*"},
                {"mtp.layers.1.*", "model.layers.0.mlp.up_proj"}},
       }) {
    const std::string golden = GoldenPath(test.folder);
    std::ifstream in(golden + "/config.json");
    const std::string text(std::istreambuf_iterator<char>(in), {});
    nlohmann::json config = *ParseHfConfigJson(text);
    if (config.contains("time_step_limit")) {  // an infinity, as it can be written again
      config["time_step_limit"][1] = {{"__float__", "Infinity"}};
    }
    for (const char* form : {"awq", "ct4", "modelopt_nvfp4"}) {
      SCOPED_TRACE(testing::Message() << test.folder << " " << form);
      const auto forms = PackedForms();
      const auto row = std::ranges::find(forms, std::string_view(form), &PackedForm::name);
      const PackedModel model =
          PackedModelMaker(*row).Pack(config, TensorsOfFolder(golden), {test.end});
      const auto open = [&](const char* plain) {
        const char* key = form == std::string_view("awq") ? "modules_to_not_convert" : "ignore";
        nlohmann::json changed = model.config;
        changed["quantization_config"][key] = {"lm_head", plain};
        const TestFolder folder("packed_names");
        folder.Write(changed, model.packed);
        return OpenModelFile(folder.path()).status();
      };
      for (const char* plain : test.plain) {
        const absl::Status status = open(plain);
        EXPECT_EQ(FolderErrorOf(status), FolderErrorCode::kUnsupportedValue) << plain << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr(test.name)) << plain;
        EXPECT_THAT(std::string(status.message()), HasSubstr("not quantised")) << plain;
      }
      for (const char* other : test.others) {
        EXPECT_TRUE(open(other).ok()) << other << open(other);
      }
    }
  }
}

}  // namespace
}  // namespace baton::model

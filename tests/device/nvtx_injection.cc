// A tool as NVTX loads it (NVTX_INJECTION64_PATH): writes a line for each range to the file that
// BATON_NVTX_RECORD names, "push DOMAIN NAME" or "pop".
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>

namespace {

// Handles are places of these.
std::deque<std::string>& Texts() {
  static std::deque<std::string> texts;
  return texts;
}

std::FILE* Record() {
  static std::FILE* const file = std::fopen(std::getenv("BATON_NVTX_RECORD"), "w");
  return file;
}

nvtxDomainHandle_t CreateDomain(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(&Texts().emplace_back(name));
}

nvtxStringHandle_t RegisterString(nvtxDomainHandle_t /*domain*/, const char* text) {
  return reinterpret_cast<nvtxStringHandle_t>(&Texts().emplace_back(text));
}

int Push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  const auto& name = *reinterpret_cast<const std::string*>(event->message.registered);
  std::fprintf(Record(), "push %s %s\n", reinterpret_cast<const std::string*>(domain)->c_str(),
               event->messageType == NVTX_MESSAGE_TYPE_REGISTERED ? name.c_str() : "?");
  std::fflush(Record());
  return 0;
}

int Pop(nvtxDomainHandle_t /*domain*/) {
  std::fprintf(Record(), "pop\n");
  std::fflush(Record());
  return 0;
}

template <typename Function>
void Set(NvtxFunctionTable table, NvtxCallbackIdCore2 id, Function function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

// The function that NVTX looks for in a library.
extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t find) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(find(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE2_DomainRangePop) {
    return 0;
  }
  Set(table, NVTX_CBID_CORE2_DomainCreateA, &CreateDomain);
  Set(table, NVTX_CBID_CORE2_DomainRegisterStringA, &RegisterString);
  Set(table, NVTX_CBID_CORE2_DomainRangePushEx, &Push);
  Set(table, NVTX_CBID_CORE2_DomainRangePop, &Pop);
  return 1;
}

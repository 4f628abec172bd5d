#include "src/api/reflection_v1.h"

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpcpp/impl/server_builder_plugin.h"
#include "grpcpp/impl/server_initializer.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/server_callback.h"

namespace baton::api {
namespace {

namespace reflection = grpc::reflection::v1;
namespace pb = google::protobuf;

using Request = reflection::ServerReflectionRequest;
using Response = reflection::ServerReflectionResponse;

constexpr const char* kPluginName = "baton.reflection_v1";

void SetError(grpc::StatusCode code, const std::string& message, Response* response) {
  response->mutable_error_response()->set_error_code(code);
  response->mutable_error_response()->set_error_message(message);
}

// Answers the questions of one stream.
class Reflector {
 public:
  explicit Reflector(const std::vector<std::string>& services) : services_(services) {}

  void Answer(const Request& request, Response* response) {
    response->Clear();
    response->set_valid_host(request.host());
    *response->mutable_original_request() = request;
    switch (request.message_request_case()) {
      case Request::kFileByFilename:
        return AddFile(pool_.FindFileByName(request.file_by_filename()), response);
      case Request::kFileContainingSymbol:
        return AddFile(pool_.FindFileContainingSymbol(request.file_containing_symbol()), response);
      case Request::kFileContainingExtension:
        return AddExtension(request.file_containing_extension(), response);
      case Request::kAllExtensionNumbersOfType:
        return AddNumbers(request.all_extension_numbers_of_type(), response);
      case Request::kListServices:
        for (const std::string& name : services_) {
          response->mutable_list_services_response()->add_service()->set_name(name);
        }
        return;
      case Request::MESSAGE_REQUEST_NOT_SET:
        return SetError(grpc::StatusCode::INVALID_ARGUMENT, "the request asks nothing", response);
    }
  }

 private:
  void AddFile(const pb::FileDescriptor* file, Response* response) {
    if (file == nullptr) {
      return SetError(grpc::StatusCode::NOT_FOUND, "no file here declares that", response);
    }
    // The file that was asked for is always sent; what it imports only once a stream.
    pb::FileDescriptorProto proto;
    file->CopyTo(&proto);
    sent_.insert(file->name());
    auto* const answer = response->mutable_file_descriptor_response();
    answer->add_file_descriptor_proto(proto.SerializeAsString());
    std::vector<const pb::FileDescriptor*> waiting = {file};
    while (!waiting.empty()) {
      const pb::FileDescriptor* const next = waiting.back();
      waiting.pop_back();
      for (int i = 0; i < next->dependency_count(); ++i) {
        const pb::FileDescriptor* const import = next->dependency(i);
        if (!sent_.insert(import->name()).second) continue;
        pb::FileDescriptorProto imported;
        import->CopyTo(&imported);
        answer->add_file_descriptor_proto(imported.SerializeAsString());
        waiting.push_back(import);
      }
    }
  }

  void AddExtension(const reflection::ExtensionRequest& request, Response* response) {
    const auto* const type = pool_.FindMessageTypeByName(request.containing_type());
    const auto* const extension =
        type == nullptr ? nullptr : pool_.FindExtensionByNumber(type, request.extension_number());
    AddFile(extension == nullptr ? nullptr : extension->file(), response);
  }

  void AddNumbers(const std::string& type_name, Response* response) {
    const auto* const type = pool_.FindMessageTypeByName(type_name);
    if (type == nullptr) {
      return SetError(grpc::StatusCode::NOT_FOUND, "there is no such message", response);
    }
    std::vector<const pb::FieldDescriptor*> extensions;
    pool_.FindAllExtensions(type, &extensions);
    auto* const answer = response->mutable_all_extension_numbers_response();
    answer->set_base_type_name(type_name);
    for (const auto* extension : extensions) answer->add_extension_number(extension->number());
  }

  const pb::DescriptorPool& pool_ = *pb::DescriptorPool::generated_pool();
  const std::vector<std::string>& services_;
  std::set<std::string> sent_;
};

// One stream: reads a question, writes its answer, and so on. Owns itself until OnDone.
class Call final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  explicit Call(const std::vector<std::string>& services) : reflector_(services) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    reflector_.Answer(request_, &response_);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  ~Call() override = default;

  Reflector reflector_;
  Request request_;
  Response response_;
};

class Service final : public reflection::ServerReflection::CallbackService {
 public:
  // Once, before the server starts.
  void SetServices(const std::vector<std::string>* services) {
    if (services != nullptr) services_ = *services;
  }

  grpc::ServerBidiReactor<Request, Response>* ServerReflectionInfo(
      grpc::CallbackServerContext* /*context*/) override {
    return new Call(services_);
  }

 private:
  std::vector<std::string> services_;
};

// Adds the service to each server that is built.
class Plugin final : public grpc::ServerBuilderPlugin {
 public:
  std::string name() override { return kPluginName; }
  void InitServer(grpc::ServerInitializer* server) override { server->RegisterService(service_); }
  void Finish(grpc::ServerInitializer* server) override {
    service_->SetServices(server->GetServiceList());
  }
  void ChangeArguments(const std::string& /*name*/, void* /*value*/) override {}
  bool has_sync_methods() const override { return false; }
  bool has_async_methods() const override { return false; }

 private:
  const std::shared_ptr<Service> service_ = std::make_shared<Service>();
};

}  // namespace

void EnableReflectionV1() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::ServerBuilder::InternalAddPluginFactory(
        [] { return std::unique_ptr<grpc::ServerBuilderPlugin>(new Plugin()); });
  });
}

}  // namespace baton::api

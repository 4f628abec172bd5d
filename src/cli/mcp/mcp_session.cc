#include "src/cli/mcp/mcp_session.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/base/version.h"

namespace baton::cli {
namespace {

using nlohmann::json;

// JSON-RPC 2.0, section 5.1.
constexpr int kParseError = -32700;
constexpr int kInvalidRequest = -32600;
constexpr int kMethodNotFound = -32601;
constexpr int kInvalidParams = -32602;

// Oldest first. A client that asks for another one is offered the last.
constexpr std::array<std::string_view, 2> kProtocolVersions = {"2025-06-18", "2025-11-25"};

const json kNull;
const json kNoMembers = json::object();

// A reference, since a copy of a deep value would recurse.
const json& MemberOf(const json& object, const char* name, const json& otherwise) {
  const auto found = object.find(name);
  return found == object.end() ? otherwise : *found;
}

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

std::string LineOf(const json& message) {
  return message.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

json SchemaOf(const McpTool& tool) {
  json properties = json::object();
  json required = json::array();
  for (const McpParam& param : tool.params) {
    json row = {{"description", param.about}};
    switch (param.kind) {
      case McpParam::Kind::kText:
        row["type"] = "string";
        break;
      case McpParam::Kind::kSwitch:
        row["type"] = "boolean";
        break;
      case McpParam::Kind::kCount:
        row["type"] = "integer";
        row["minimum"] = param.low;
        row["maximum"] = param.high;
        break;
    }
    properties[std::string(param.name)] = std::move(row);
    if (param.required) required.push_back(param.name);
  }
  json schema = {
      {"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
  if (!required.empty()) schema["required"] = std::move(required);
  return schema;
}

json ToolList(const std::vector<McpTool>& tools) {
  json list = json::array();
  for (const McpTool& tool : tools) {
    list.push_back({{"name", tool.name},
                    {"description", tool.about},
                    {"inputSchema", SchemaOf(tool)},
                    {"annotations", {{"readOnlyHint", true}, {"destructiveHint", false}}}});
  }
  return {{"tools", std::move(list)}};
}

json Greeting(const json& params) {
  const std::string wanted = MemberOf(params, "protocolVersion", kNull).get<std::string>();
  const bool is_known = std::find(kProtocolVersions.begin(), kProtocolVersions.end(), wanted) !=
                        kProtocolVersions.end();
  return {{"protocolVersion", is_known ? wanted : std::string(kProtocolVersions.back())},
          {"capabilities", {{"tools", {{"listChanged", false}}}}},
          {"serverInfo", {{"name", "baton"}, {"title", "Baton"}, {"version", kVersion}}},
          {"instructions",
           "Tools look at a running Baton cluster and at this host; none changes anything. Begin "
           "with status."}};
}

// Why `value` does not fit `param`; "" = it does.
std::string FaultOf(const McpParam& param, const json& value) {
  switch (param.kind) {
    case McpParam::Kind::kText:
      if (!value.is_string()) return fmt::format("'{}' must be a string", param.name);
      break;
    case McpParam::Kind::kSwitch:
      if (!value.is_boolean()) return fmt::format("'{}' must be true or false", param.name);
      break;
    case McpParam::Kind::kCount: {
      const bool is_huge = value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX;
      const bool fits = value.is_number_integer() && !is_huge &&
                        value.get<int64_t>() >= param.low && value.get<int64_t>() <= param.high;
      if (!fits) {
        return fmt::format("'{}' must be a whole number from {} to {}", param.name, param.low,
                           param.high);
      }
      break;
    }
  }
  return "";
}

// Why the arguments do not fit the tool; "" = they do.
std::string FaultOf(const McpTool& tool, const json& arguments) {
  for (const McpParam& param : tool.params) {
    const auto found = arguments.find(std::string(param.name));
    if (found == arguments.end()) {
      if (param.required) return fmt::format("'{}' is missing: {}", param.name, param.about);
      continue;
    }
    std::string fault = FaultOf(param, *found);
    if (!fault.empty()) return fault;
  }
  for (const auto& item : arguments.items()) {
    const bool is_known =
        std::any_of(tool.params.begin(), tool.params.end(),
                    [&item](const McpParam& param) { return param.name == item.key(); });
    if (is_known) continue;
    std::string names;
    for (const McpParam& param : tool.params) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", param.name);
    }
    return fmt::format("{} takes no argument of that name; it takes {}", tool.name,
                       names.empty() ? "none" : names);
  }
  return "";
}

}  // namespace

McpSession::McpSession(std::vector<McpTool> tools, std::function<void(std::string_view line)> write)
    : tools_(std::move(tools)), write_(std::move(write)) {}

void McpSession::Take(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    AddToLine(bytes.substr(0, end));
    if (end == std::string_view::npos) return;
    bytes.remove_prefix(end + 1);
    EndLine();
  }
}

void McpSession::End() { EndLine(); }

void McpSession::AddToLine(std::string_view part) {
  is_too_long_ = is_too_long_ || line_.size() + part.size() > kMaxMcpLineBytes;
  if (is_too_long_) {
    line_.clear();
  } else {
    line_.append(part);
  }
}

void McpSession::EndLine() {
  const std::string line = std::exchange(line_, {});
  if (std::exchange(is_too_long_, false)) {
    WriteError(kNull, kInvalidRequest,
               fmt::format("a line has more than {} bytes", kMaxMcpLineBytes));
  } else if (!IsBlank(line)) {
    Answer(line);
  }
}

void McpSession::Answer(const std::string& line) {
  const json message = json::parse(line, nullptr, false);
  if (message.is_discarded()) {
    return WriteError(kNull, kParseError, "the line is no JSON; a message is one line");
  }
  if (!message.is_object()) {
    return WriteError(kNull, kInvalidRequest,
                      "a message is one JSON object; the protocol has no batches");
  }
  const bool has_id = message.contains("id");
  const json& given = MemberOf(message, "id", kNull);
  const bool is_good_id = given.is_string() || given.is_number_integer();
  const json& id = is_good_id ? given : kNull;
  const json& method = MemberOf(message, "method", kNull);
  if (MemberOf(message, "jsonrpc", kNull) != "2.0") {
    return WriteError(id, kInvalidRequest, "'jsonrpc' must be \"2.0\"");
  }
  // An answer: nothing was asked of the client.
  if (method.is_null() && (message.contains("result") || message.contains("error"))) return;
  if (!method.is_string()) return WriteError(id, kInvalidRequest, "'method' must be a string");
  if (!has_id) return;  // a notification; none asks for work here
  if (!is_good_id) {
    return WriteError(kNull, kInvalidRequest, "'id' must be a string or a whole number");
  }
  const json& params = MemberOf(message, "params", kNoMembers);
  if (!params.is_object()) return WriteError(id, kInvalidParams, "'params' must be an object");
  AnswerRequest(id, method.get<std::string>(), params);
}

void McpSession::AnswerRequest(const json& id, const std::string& method, const json& params) {
  if (method == "ping") return WriteResult(id, kNoMembers);
  if (method == "tools/list") return WriteResult(id, ToolList(tools_));
  if (method == "tools/call") return CallTool(id, params);
  if (method != "initialize") {
    return WriteError(id, kMethodNotFound,
                      "there is no such method; there are initialize, ping, tools/list and "
                      "tools/call");
  }
  if (!MemberOf(params, "protocolVersion", kNull).is_string()) {
    return WriteError(id, kInvalidParams, "'protocolVersion' must be a string: \"2025-11-25\"");
  }
  WriteResult(id, Greeting(params));
}

void McpSession::CallTool(const json& id, const json& params) {
  const json& name = MemberOf(params, "name", kNull);
  const auto tool = std::find_if(tools_.begin(), tools_.end(), [&name](const McpTool& one) {
    return name.is_string() && name.get_ref<const std::string&>() == one.name;
  });
  if (tool == tools_.end()) {
    return WriteError(id, kInvalidParams, "'name' is no tool; tools/list has their names");
  }
  const json& arguments = MemberOf(params, "arguments", kNoMembers);
  if (!arguments.is_object()) {
    return WriteError(id, kInvalidParams, "'arguments' must be an object");
  }
  // Arguments that do not fit are the tool's answer, so that a model can mend them.
  McpResult result = {.text = FaultOf(*tool, arguments), .is_error = true};
  if (result.text.empty()) result = tool->call(arguments);
  json content = json::array();
  content.push_back({{"type", "text"}, {"text", result.text}});
  WriteResult(id, {{"content", std::move(content)}, {"isError", result.is_error}});
}

void McpSession::WriteResult(const json& id, const json& result) {
  write_(LineOf({{"jsonrpc", "2.0"}, {"id", id}, {"result", result}}));
}

void McpSession::WriteError(const json& id, int code, std::string_view message) {
  write_(
      LineOf({{"jsonrpc", "2.0"}, {"id", id}, {"error", {{"code", code}, {"message", message}}}}));
}

}  // namespace baton::cli

#include "src/http/http_message.h"

#include <algorithm>

#include "fmt/format.h"

namespace baton::http {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

bool EqualsIgnoreCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return Lower(x) == Lower(y); });
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), Lower);
  return lower;
}

std::string_view TrimBlanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

void HttpHeaders::Add(std::string_view name, std::string_view value) {
  fields_.emplace_back(std::string(name), std::string(value));
}

void HttpHeaders::Set(std::string_view name, std::string_view value) {
  std::erase_if(fields_, [&](const Field& field) { return EqualsIgnoreCase(field.first, name); });
  Add(name, value);
}

std::optional<std::string_view> HttpHeaders::Find(std::string_view name) const {
  for (const Field& field : fields_) {
    if (EqualsIgnoreCase(field.first, name)) return std::string_view(field.second);
  }
  return std::nullopt;
}

std::vector<std::string_view> HttpHeaders::FindAll(std::string_view name) const {
  std::vector<std::string_view> values;
  for (const auto& [field, value] : fields_) {
    if (EqualsIgnoreCase(field, name)) values.push_back(value);
  }
  return values;
}

size_t HttpHeaders::Count(std::string_view name) const {
  return static_cast<size_t>(std::count_if(fields_.begin(), fields_.end(), [&](const Field& field) {
    return EqualsIgnoreCase(field.first, name);
  }));
}

std::string_view HttpReason(int status) {
  // RFC 9110 section 15; 499 is the common name for "client closed request".
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 204:
      return "No Content";
    case 302:
      return "Found";
    case 304:
      return "Not Modified";
    case 308:
      return "Permanent Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

HttpResponse PlainTextError(const HttpRefusal& refusal, std::string_view /*request_id*/) {
  HttpResponse response;
  response.status = refusal.status;
  response.headers.Add("Content-Type", "text/plain; charset=utf-8");
  response.body = fmt::format("{} {}: {}{}{}\n", refusal.status, HttpReason(refusal.status),
                              refusal.code, refusal.code.empty() ? "" : ": ", refusal.message);
  return response;
}

}  // namespace baton::http

// C ABI of the Rust library baton_hub: one HTTP request by libcurl, which is built into it. Only
// src/cli/web_client.cc includes it; everything else uses the types of web_client.h.
//
// 1. No function unwinds: a Rust panic comes back as BATON_HUB_INTERNAL.
// 2. Texts are UTF-8 or ASCII, end with a zero byte, and are valid for the duration of the call.
// 3. Redirects are not followed: the caller decides what goes to another origin.
// 4. libcurl reads https_proxy, all_proxy and no_proxy in both spellings, and http_proxy;
//    HTTP_PROXY is read too, except in a CGI process (REQUEST_METHOD is set).
#ifndef BATON_CLI_HUB_BATON_HUB_H_
#define BATON_CLI_HUB_BATON_HUB_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Outcome of a call.
enum baton_hub_code {
  BATON_HUB_OK = 0,           // an answer arrived whole, whatever its status
  BATON_HUB_NO_HOST = 1,      // a name, of the server or of the proxy, cannot be resolved
  BATON_HUB_REFUSED = 2,      // nobody takes the connection, or the proxy does not open a tunnel
  BATON_HUB_LATE = 3,         // no connection, or no byte, for the given time
  BATON_HUB_TLS = 4,          // no trusted TLS connection
  BATON_HUB_BROKEN = 5,       // the answer ended before its end, or is no HTTP
  BATON_HUB_STOPPED = 6,      // a callback returned 0
  BATON_HUB_BAD_REQUEST = 7,  // URL, proxy or certificate file that libcurl cannot use
  BATON_HUB_INTERNAL = 8,     // a panic was caught
};

// One request.
typedef struct {
  const char* url;
  uint8_t is_head;            // HEAD instead of GET
  const char* authorization;  // value of the header Authorization; null = none
  const char* user_agent;
  uint64_t begin;        // first byte wanted; 0 = the whole, without a Range header
  const char* if_range;  // value of the header If-Range beside a Range; null = none
  uint64_t connect_timeout_s;
  uint64_t silence_timeout_s;  // longest time without a byte
  // Certificates in PEM in the place of the system's file; null = that file. The system's folders
  // are trusted besides, unless ca_dirs names others.
  const char* ca_file;
  // Folders of hashed certificates, ':' between, in the place of the system's; null = those. The
  // system's file is trusted besides, unless ca_file names another.
  const char* ca_dirs;
  const char* no_proxy;  // list in the place of the environment's no_proxy; null = that
  void* state;           // given to the callbacks
  // Called once, before the body: status, header lines ("Name: value\r\n" each), and where a
  // redirect leads as a whole URL, or null. 0 ends the call.
  int (*on_head)(void* state, uint32_t status, const char* lines, size_t size,
                 const char* redirect);
  // Called with each piece of the body. 0 ends the call.
  int (*on_body)(void* state, const uint8_t* data, size_t size);
} baton_hub_request;

// Blocks until the answer has ended. `error` [error_size] gets a message, or "" on BATON_HUB_OK; it
// is cut where it does not fit.
int32_t baton_hub_call(const baton_hub_request* request, char* error, size_t error_size);

#ifdef __cplusplus
}
#endif

#endif  // BATON_CLI_HUB_BATON_HUB_H_

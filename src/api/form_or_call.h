// A form of JSON beside tools that the model may call: the answer is JSON of the form, or one call
// as bare JSON. Both are branches of one schema, because a grammar of the form alone leaves no text
// for a call. Pure but for the model's cache of grammars; any thread.
#ifndef BATON_API_FORM_OR_CALL_H_
#define BATON_API_FORM_OR_CALL_H_

#include "src/api/build_request.h"
#include "src/api/params.h"
#include "src/router/request_error.h"

namespace baton::api {

// Whether the request has a form of JSON, and tools that the model may call and need not. Other
// forms (regular expressions, choices, grammars) hold for the whole answer.
bool MayCallBesideForm(const ApiParams& params);

// Sets the grammar of such a request, whose form is a schema that is checked already. Arguments of
// functions with `strict` follow their schemas; those of others are any object. False: `error`
// names the field.
bool SetFormOrCall(const ApiParams& params, BuiltRequest* built, router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_FORM_OR_CALL_H_

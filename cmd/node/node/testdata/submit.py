"""Sends one command as a client in another language would.

Usage: submit.py ADDRESS < request.json

The message classes are made at run time from the file descriptors in the request,
so that no generated code is needed. Prints {"code", "reason", "replayed"}.
"""

import base64
import json
import sys

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def message_class(pool, name):
    descriptor = pool.FindMessageTypeByName(name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # before 4.22


def main():
    job = json.load(sys.stdin)
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(job["files"]))
    for f in files.file:
        pool.Add(f)

    def new(name):
        return message_class(pool, name)()

    order = new("writ.testing.v1.Order")
    order.amount_minor = job["amount"]
    order.currency = "EUR"
    for name in job["items"]:  # in the order given
        order.items[name] = len(name)
    order.notes.extend(["a", "b"])
    order.to.street = "Main Street"
    order.gift = False  # a default, written out
    if job["discount"] is not None:
        order.discount_minor = job["discount"]

    request = new("writ.v1.SubmitRequest")
    request.entity.kind = "order"
    request.entity.id = job["id"]
    request.idempotency_key = job["key"]
    request.command.type_url = "type.googleapis.com/writ.testing.v1.Order"
    request.command.value = order.SerializeToString()

    response = message_class(pool, "writ.v1.SubmitResponse")
    with grpc.insecure_channel(sys.argv[1]) as channel:
        call = channel.unary_unary(
            "/writ.v1.EntityService/Submit",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=response.FromString,
        )
        try:
            answer = call(request, timeout=30)
            out = {"code": "OK", "reason": "", "replayed": answer.replayed}
        except grpc.RpcError as e:
            out = {"code": e.code().name, "reason": reason(e), "replayed": False}
    json.dump(out, sys.stdout)


def reason(error):
    """The reason in google.rpc.ErrorInfo, found without its generated code."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for word in ("KEY_REUSED", "INVALID", "EXPIRED"):
                if word.encode() in value:
                    return word
    return ""


main()

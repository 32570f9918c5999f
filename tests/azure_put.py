"""Makes containers and blobs on a server of Azure Blob Storage, for tests: with whatever keys.

azure_put.py ENDPOINT ACCOUNT KEY (container:NAME | blob:NAME | file:NAME=PATH)...

A blob holds one byte, a file what lies at PATH. Names begin with their container.
"""
import base64, email.utils, hashlib, hmac, http.client, sys, urllib.parse
endpoint, account, key = sys.argv[1:4]
where = urllib.parse.urlsplit(endpoint)
connection = http.client.HTTPConnection(where.netloc)
def put(path, query, body, extra):
    path = where.path + "/" + urllib.parse.quote(path)
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06", **extra}
    signed = ["PUT", "", "", str(len(body)) if body else "", *[""] * 8]
    signed += [f"{name}:{headers[name]}" for name in sorted(headers)]
    signed += ["/" + account + path] + [f"{name}:{value}" for name, value in query]
    mac = hmac.digest(base64.b64decode(key), "\n".join(signed).encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(mac).decode()}"
    connection.request("PUT", path + "?" + urllib.parse.urlencode(query), body, headers)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 201, (path, answer.status, text)
for argument in sys.argv[4:]:
    kind, name = argument.split(":", 1)
    if kind == "container":
        put(name, [("restype", "container")], b"", {})
    else:
        content = b"x"
        if kind == "file":
            name, path = name.rsplit("=", 1)
            with open(path, "rb") as file:
                content = file.read()
        put(name, [], content, {"x-ms-blob-type": "BlockBlob"})

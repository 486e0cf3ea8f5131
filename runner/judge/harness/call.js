// Calls one function of main.js and tells its value on descriptor 3, as JSON.
const fs = require('fs')
const vm = require('vm')
const request = JSON.parse(fs.readFileSync(process.env.PADDOCK_HARNESS, 'utf8'))
Object.assign(globalThis, { require, module: { exports: {} }, exports: {} })
vm.runInThisContext(fs.readFileSync('main.js', 'utf8'), { filename: 'main.js' })
let target
try {
  target = vm.runInThisContext(request.function)
} catch {
  target = globalThis.module.exports[request.function]
}
if (typeof target !== 'function') {
  console.error('main.js has no function ' + request.function)
  process.exit(1)
}
Promise.resolve(target(...request.args)).then((value) => {
  fs.writeSync(3, JSON.stringify(value === undefined ? null : value))
})

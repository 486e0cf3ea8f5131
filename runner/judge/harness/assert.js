// Runs an assertion on main.js and tells on descriptor 3 that it came to its end.
const fs = require('fs')
const vm = require('vm')
const request = JSON.parse(fs.readFileSync(process.env.PADDOCK_HARNESS, 'utf8'))
Object.assign(globalThis, { require, module: { exports: {} }, exports: {}, assert: require('assert') })
vm.runInThisContext(fs.readFileSync('main.js', 'utf8'), { filename: 'main.js' })
vm.runInThisContext(request.assert, { filename: 'assertion' })
fs.writeSync(3, JSON.stringify('passed'))

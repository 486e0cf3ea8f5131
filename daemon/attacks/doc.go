// Package attacks is the suite in which the code of an episode is the attacker. It has no
// code of its own, only tests: a table of cases, each with the id under which the threat
// model (docs/threat-model.md) names it, what the hostile code does, and the right answer.
// Every case runs under every policy, in a sandbox of its own, beside a bystander.
//
// The tests run in network, IPC and mount namespaces that they make themselves. What is
// called the host here, with its hosts of the internet and its metadata service, is that
// namespace: a case that breaks out finds nothing real.
package attacks

"""Every action of the console: its keys, its effect and its place.

Widgets make their bindings from this table, and the keys of a user are checked by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from textual.binding import Binding, BindingType
from textual.dom import DOMNode


class Action(NamedTuple):
    id: str
    """``area.verb``; what a keymap in the configuration names."""
    keys: str
    """Default keys, separated by commas, in Textual's spelling."""
    action: str
    """The action to run, in the namespace of the widget that binds it."""
    label: str
    """One or two words for the footer."""
    tooltip: str
    """One sentence for help and palette."""
    show: bool = False
    """True if the footer offers the action."""
    display: str | None = None
    """The keys as the footer writes them, if the spelling is clumsy."""
    priority: bool = False
    """True if the action wins over the focused widget."""

    @property
    def area(self) -> str:
        """The pane, screen or dialog it belongs to."""
        return self.id.partition(".")[0]


# The fifth column: ``!`` has priority, ``+`` is in the footer, then how keys are written.
TABLE = r"""
app.cluster      | 1,f1          | app.show_mode('cluster') | Cluster        |    | Peers, split, live figures and chat
app.layers       | 2,f2          | app.show_mode('layers')  | Layers         |    | What each layer holds, and the device that computes it
app.traffic      | 3,f3          | app.show_mode('traffic') | Traffic        |    | Where each token's time goes, and every command on every link
app.lab          | 4,f4          | app.show_mode('lab')     | Lab            |    | Simulate slower links and see the speed
app.logs         | 5,f5          | app.show_mode('logs')    | Logs           |    | The log of each process
app.models       | 6,f6          | app.show_mode('models')  | Models         |    | Model files found on this machine
app.machines     | 7,f7          | app.show_mode('machines') | Machines     |    | Load, memory, temperature and power of machines and processes
app.help         | question_mark | app.help                 | help           | +? | Help and keys of the focused pane
app.palette      | colon,ctrl+p  | app.find                 | command        | +: | Find any action, peer, model, log, theme or setting by name, and go there
app.jump         | ctrl+j,f10    | app.jump                 | jump           |    | Jump by letters to anything that takes the focus or can be pressed
app.menu         | full_stop     | app.menu                 | menu           |    | What can be done with the selected thing
app.copy         | y             | app.copy                 | copy           |    | Copy what the focused pane offers
app.raw          | J             | app.raw                  | JSON           |    | Show the JSON of what is selected, as the API gives it, to search and to copy
app.copy_command | Y             | app.copy_command         | copy command   |    | Copy the command line of the llama-server that runs
app.screenshot   | f12           | app.screenshot           | screenshot     |    | Save a picture (SVG) of the screen
app.record       | f9            | app.record               | record         |    | Record all that the console shows in a file to replay, or end that
app.zoom         | z             | screen.zoom              | zoom           | +  | Give the focused pane the whole screen, and back
app.layout       | vertical_line | screen.next_layout       | layout         |    | Lay out the panes in another way
app.border_left  | left_parenthesis,ctrl+left | screen.move_border(-2) | border left | | Move the border between the panes to the left
app.border_right | right_parenthesis,ctrl+right | screen.move_border(2) | border right | | Move the border between the panes to the right
app.border_up    | ctrl+up       | screen.move_border(-1, True) | border up   | | Move the border between upper and lower panes up
app.border_down  | ctrl+down     | screen.move_border(1, True)  | border down | | Move the border between upper and lower panes down
app.borders      | backslash     | screen.reset_borders     | usual sizes    |    | Give the panes of this screen their usual sizes
app.freeze       | space         | app.freeze               | freeze         |    | Freeze all panes while data keeps coming, or resume
app.settings     | comma         | app.settings             | settings       | ,  | Show and change every setting of config.toml
app.theme        | t             | app.theme                | theme          |    | Pick a theme with a live preview
app.events       | e             | app.events               | events         |    | Events of the last days with their evidence, and past notifications
app.clusters     | N             | app.clusters             | clusters       |    | Go to another cluster of this machine
app.quit         | q,ctrl+q      | app.quit_console         | quit           | +  | Leave the console; asks what to do with a running cluster
app.interrupt    | ctrl+c        | app.interrupt            | copy selection |    | Copy the selected text; never quits
app.back         | escape        | app.back                 | back           |    | Leave zoom, then this screen

panes.keep | escape | screen.keep_border | keep | ! | Leave the border where it was before the drag

replay.play          | space                | app.play            | play          | !+␣  | Play, or pause
replay.later         | right                | app.skip(5)         | 5 s           | !+←→ | Five seconds on
replay.earlier       | left                 | app.skip(-5)        | 5 s back      | !    | Five seconds back
replay.much_later    | shift+right          | app.skip(60)        | a minute      | !    | A minute on
replay.much_earlier  | shift+left           | app.skip(-60)       | a minute back | !    | A minute back
replay.beginning     | home                 | app.skip(-1000000)  | beginning     | !    | The beginning
replay.end           | end                  | app.skip(1000000)   | end           | !    | The end
replay.next_mark     | right_square_bracket | app.skip_to_mark(1) | mark          | !+[] | The next event, answer or fault
replay.previous_mark | left_square_bracket  | app.skip_to_mark(-1) | previous mark | !   | The previous event, answer or fault
replay.race          | V                    | app.race            | race          | !    | Show the newest race up to this moment
replay.faster        | greater_than_sign    | app.run_faster(1)   | speed         | !+<> | Twice as fast
replay.slower        | less_than_sign       | app.run_faster(-1)  | slower        | !    | Half as fast

cluster.launch        | l         | app.launch           | launch        | + | Run the split as it is shown
cluster.stop          | s         | app.stop             | stop          | + | Stop the running cluster (asks)
cluster.balance       | b         | app.balance          | balance       | + | Balance layers by device memory; while this machine has no llama.cpp, get it
cluster.settings      | p         | app.launch_settings  | settings      | + | Set context, KV cache, slots, threads, draft and further arguments of a launch
cluster.model         | m         | app.pick_model       | model         | + | Pick another model or quantization
cluster.why           | W,enter   | app.take_change      | faster        |   | Make the one change that is predicted to gain most, as an edit
cluster.pulse         | T         | app.pulse            | pulse         |   | Turn the token pulse on the split bar on or off
cluster.race          | V         | app.race             | race          |   | Put one prompt to two plans, splits or drafts, and compare the answers
cluster.share         | X         | app.share            | share         |   | Copy a card of model, split, measured speed and command, and save it as a picture (SVG)
cluster.ask           | i         | screen.ask           | ask           |   | Go to the text field of the chat
cluster.next_pane     | tab       | screen.next_pane     | next pane     |   | Next pane
cluster.previous_pane | shift+tab | screen.previous_pane | previous pane |   | Previous pane

split.more              | right,plus           | move(1)         | move              | +←→ | Move the boundary right: one layer more for the device on its left
split.less              | left,minus           | move(-1)        | one less          |     | Move the boundary left
split.much_more         | shift+right          | move(4)         | four more         |     | Move the boundary four layers right
split.much_less         | shift+left           | move(-4)        | four less         |     | Move the boundary four layers left
split.none              | home                 | move_to_end(-1) | far left          |     | Move the boundary as far left as it goes
split.all               | end                  | move_to_end(1)  | far right         |     | Move the boundary as far right as it goes
split.next_boundary     | right_square_bracket | pick(1)         | pick              | +[] | Pick the next boundary
split.previous_boundary | left_square_bracket  | pick(-1)        | previous boundary |     | Pick the previous boundary
split.undo              | u                    | undo            | undo              | +   | Undo the last change
split.redo              | U,ctrl+y             | redo            | redo              |     | Redo the undone change
split.later             | greater_than_sign    | reorder(1)      | swap              | +<> | Swap the device left of the boundary with the next one
split.earlier           | less_than_sign       | reorder(-1)     | earlier           |     | Swap the device left of the boundary with the previous one
split.set               | equals_sign,enter    | number          | set               | +=  | Type how many layers the device left of the boundary gets; again applies it
split.best              | a                    | app.best_plans  | best              | + | Show the best plans for all aims on the bar, and take one
split.plans             | o                    | app.kept_plans  | plans             |   | Take a saved plan, or one of the last launches
split.save              | S                    | app.save_plan   | save plan         |   | Save this plan by a name
split.erase             | backspace            | erase_typed     | erase             |     | Erase the last digit typed
split.cancel            | escape               | cancel          | cancel            |     | Cancel the drag or the number being typed

launching.apply  | f2,enter     | apply              | apply    | + | Use these settings
launching.down   | down,tab     | app.focus_next     | next     | ! | Next field
launching.up     | up,shift+tab | app.focus_previous | previous | ! | Previous field
launching.cancel | escape       | cancel             | cancel   | + | Change nothing

layers.mark      | v          | mark        | mark        | + | Mark layers from here on
layers.mark_down | shift+down | extend(1)   | mark down   |   | Mark the next layer too
layers.mark_up   | shift+up   | extend(-1)  | mark up     |   | Mark the layer above too
layers.unmark    | escape     | unmark      | unmark      |   | Mark nothing
layers.give      | enter      | pick        | give to…    | +⏎ | Give the marked layers to a device of a list
layers.to_a      | A          | give(0)     | to A        |   | Give the marked layers to device A
layers.to_b      | B          | give(1)     | to B        |   | Give the marked layers to device B
layers.to_c      | C          | give(2)     | to C        |   | Give the marked layers to device C
layers.to_d      | D          | give(3)     | to D        |   | Give the marked layers to device D
layers.to_e      | E          | give(4)     | to E        |   | Give the marked layers to device E
layers.to_f      | F          | give(5)     | to F        |   | Give the marked layers to device F
layers.experts   | x          | experts     | experts     | + | Give only the experts of layers from now on, or whole layers again
layers.undo      | u          | app.undo    | undo        | + | Undo the last change
layers.redo      | U,ctrl+y   | app.redo    | redo        |   | Redo the undone change
layers.balance   | b          | app.balance | balance     | + | Balance layers by device memory
layers.launch    | l          | app.launch  | launch      | + | Run the split as it is shown
layers.down      | j          | move(1)     | down        |   | Next layer
layers.up        | k          | move(-1)    | up          |   | Previous layer
layers.first     | home,g     | move(-1000) | first       |   | First layer
layers.last      | end,G      | move(1000)  | last        |   | The output

peers.down      | down,j           | select(1)        | select     | +↑↓ | Next peer
peers.up        | up,k             | select(-1)       | up         |     | Previous peer
peers.first     | home,g           | select(-1000)    | first      |     | First peer
peers.last      | end,G            | select(1000)     | last       |     | Last peer
peers.filter    | slash            | filter           | filter     |     | Show only peers with these words in name, role, state or way
peers.unfilter  | escape           | unfilter         | show all   |     | Remove the filter
peers.add       | a                | ask('add')       | add        | +   | Add a machine
peers.invite    | I                | ask('invite')    | invite     |     | Invite a machine: a token with which it dials this console
peers.open      | enter            | ask('open')      | open       | +⏎  | Answer the peer's question, or show its details
peers.use       | w                | ask('use')       | worker     | +   | Add the peer to the split, or remove it
peers.lead      | h                | ask('lead')      | head       |     | Make the peer the head, or this machine again
peers.provision | p                | ask('provision') | provision  | +   | Install the engine and our helper on the peer
peers.cancel    | x                | ask('cancel')    | end work   | +   | Cancel the task on the peer; the next run resumes
peers.undo      | u                | app.undo         | undo       |     | Undo the last change of head, workers or layers
peers.probe     | r                | ask('probe')     | probe      |     | Probe the peer now
peers.copy      | c                | ask('copy')      | copy model |     | Copy the model to the peer
peers.data      | d                | ask('data')      | data       |     | Choose how data go to the peer: directly, or through SSH
peers.rename    | R                | ask('rename')    | name       |     | Give the peer another name here
peers.log       | o                | ask('log')       | open log   |     | Read the log of its worker
peers.remove    | delete,backspace | ask('remove')    | remove     |     | Forget the peer (asks); what is installed there stays

live.log       | O | screen.open_log  | open log  | + | Read the log of the process that failed, or of llama-server
live.provision | P | screen.provision | provision | + | Install our engine on the peer whose engine does not match

composer.send      | enter              | send     | send        | +   | Send the question
composer.newline   | ctrl+j,shift+enter | newline  | new line    | +^j | Begin a new line
composer.find      | ctrl+f             | find     | search      |     | Search this chat
composer.page_up   | pageup             | page(-1) | scroll up   |     | Scroll the conversation
composer.page_down | pagedown           | page(1)  | scroll down |     | Scroll it down

chat.leave            | escape                         | leave            | leave         |      | Leave the text field; deselect the question
chat.stop             | escape                         | stop_answer      | stop          | +    | Stop the answer
chat.write            | enter,i                        | write            | write         | +⏎   | Go to the text field
chat.again            | r                              | again            | again         | +    | Ask the selected question again, or the last; earlier answers are kept
chat.earlier_question | left_curly_bracket,shift+up    | choose(-1)       | questions     | +{ } | Select the previous question, to ask it again or edit it
chat.later_question   | right_curly_bracket,shift+down | choose(1)        | next question |      | Select the next question; after the last, none
chat.earlier_answer   | left_square_bracket            | variant(-1)      | answers       | +[ ] | The previous answer to the selected question, with what followed it
chat.later_answer     | right_square_bracket           | variant(1)       | next answer   |      | The next answer to the selected question, with what followed it
chat.edit             | E                              | edit             | edit          | +    | Edit the selected question, or the last, and ask it again
chat.find             | slash,ctrl+f                   | find             | search        |      | Search this chat
chat.compose          | f8                             | want('compose')  | editor        |      | Write the question in your editor ($VISUAL or $EDITOR)
chat.reasoning        | v                              | toggle_reasoning | reasoning     |      | Show or hide the reasoning
chat.settings         | p                              | want('settings') | settings      | +    | Set the system prompt and sampling
chat.new              | n                              | want('new')      | new           | +    | Start a new chat; this one is kept
chat.open             | o                              | want('open')     | chats         | +    | Open an earlier chat
chat.rename           | R                              | want('rename')   | name          |      | Give the chat a name
chat.export           | x                              | want('export')   | export        |      | Write the chat to a file, as Markdown or JSON
chat.delete           | delete                         | want('delete')   | delete        |      | Delete the chat (asks)
chat.undo             | u                              | want('undo')     | undo          |      | Undo the last change of the chat
chat.up               | k                              | scroll_lines(-1) | up            |      | Scroll up
chat.down             | j                              | scroll_lines(1)  | down          |      | Scroll down
chat.first            | g                              | scroll_first     | first         |      | The oldest turn
chat.last             | G                              | scroll_last      | newest        |      | The newest words

sampling.apply  | f2     | apply  | apply  | + | Use these settings
sampling.cancel | escape | cancel | cancel | + | Change nothing

chats.choose    | enter    | choose   | open    | +⏎  | Open this chat
chats.down      | down     | move(1)  | down    | +↑↓ | Next chat
chats.up        | up       | move(-1) | up      |     | Previous chat
chats.page_down | pagedown | move(8)  | further |     | Further down
chats.page_up   | pageup   | move(-8) | back up |     | Further up
chats.cancel    | escape   | cancel   | cancel  | +   | Keep the current chat

log.next     | right_square_bracket | screen.next_log(1)  | log          | +[ ] | Next log
log.previous | left_square_bracket  | screen.next_log(-1) | previous log |      | Previous log
log.all      | a                    | screen.all          | all          | +    | Show all logs as one, by time, or again the one before
log.filter   | slash                | screen.filter       | filter       | +/   | Show only lines with a text or a /pattern
log.level    | v                    | screen.level        | level        | +    | Hide debug lines, then all but warnings, then all but errors
log.fold     | w                    | fold                | wrap         | +    | Wrap long lines, or cut them
log.save     | S                    | screen.save         | save         | +    | Save the whole log to a file
log.pager    | P                    | screen.pager        | pager        |      | Read the whole log in your pager ($PAGER)
log.follow   | end,G                | follow              | follow       | +End | Go to the newest line and follow
log.first    | home,g               | scroll_home         | first        |      | The oldest line held
log.up       | up,k                 | select(-1)          | up           |      | Select the line above
log.down     | down,j               | select(1)           | down         |      | Select the line below; below the newest follow the log again
log.whole    | enter                | whole_line          | whole line   | +⏎   | Show the selected line whole
log.left     | left,h               | sideways(-1)        | left         |      | Move sideways
log.right    | right,l              | sideways(1)         | right        |      | Move sideways
log.unfilter | escape               | screen.unfilter     | show all     |      | Leave the selected line, then remove the filter, then the level

filter.clear | escape | clear | clear | + | Remove the filter

models.choose      | enter      | choose            | use         | +⏎ | Use this model
models.filter      | slash      | filter            | filter      | +/ | Filter by name
models.get         | g          | get               | get…        | +  | Get a model from a repository, a URL or a package, by quantization
models.sort        | o          | sort              | sort        | +  | Sort by the next column
models.reverse     | O          | reverse           | reverse     |    | Reverse the order
models.rescan      | r          | rescan            | rescan      | +  | Search the model folders again
models.path        | p          | open_path         | path…       | +  | Use any GGUF file by its path
models.down        | j          | move(1)           | down        |    | Next model
models.up          | k          | move(-1)          | up          |    | Previous model
models.engine      | b          | app.get_engine    | engine      |    | Get llama.cpp for this machine: its own release, or a build; again cancels
models.cancel      | x          | cancel_get        | cancel      |    | Cancel the download
models.remove      | delete     | remove            | delete…     |    | Delete the model's files (asks)
models.first       | home       | move(-100000)     | first       |    | First model
models.last        | G,end      | move(100000)      | last        |    | Last model
models.detail_down | shift+down | scroll_detail(2)  | detail down |    | Scroll the details
models.detail_up   | shift+up   | scroll_detail(-2) | detail up   |    | Scroll the details back
models.unfilter    | escape     | unfilter          | show all    |    | Remove the filter

path.complete | tab | complete | complete |  | Complete the path being typed

traffic.filter   | slash  | filter        | filter   | +/ | Filter by worker and command
traffic.sort     | o      | sort          | sort     | +  | Sort by the next column
traffic.reverse  | O      | reverse       | reverse  |    | Reverse the order
traffic.median   | v      | median        | median   | +  | Show the median of the latest tokens, or the latest one
traffic.worker   | w      | next_worker   | worker   |    | Show the tokens of one worker alone, or of all
traffic.export   | x      | export        | export   | +  | Write the latest tokens to a file as a Chrome trace
traffic.down     | j      | move(1)       | down     |    | Next row
traffic.up       | k      | move(-1)      | up       |    | Previous row
traffic.first    | g      | move(-100000) | first    |    | First row
traffic.last     | G      | move(100000)  | last     |    | Last row
traffic.unfilter | escape | unfilter      | show all |    | Remove the filter

processes.describe | enter  | describe      | details  | +⏎ | Show the process: its command line, its last log lines and events
processes.restart  | r      | restart       | restart  | +  | Restart the process, and what depends on it (asks)
processes.kill     | K      | kill          | kill     | +  | Kill the process (asks); what the cluster needs of it starts again
processes.filter   | slash  | filter        | filter   | +/ | Filter by name, machine and state
processes.sort     | o      | sort          | sort     | +  | Sort by the next column
processes.reverse  | O      | reverse       | reverse  |    | Reverse the order
processes.span     | v      | span          | minutes  | +  | Show the last minute, the last five or the last ten
processes.down     | j      | move(1)       | down     |    | Next process
processes.up       | k      | move(-1)      | up       |    | Previous process
processes.first    | g      | move(-100000) | first    |    | First process
processes.last     | G      | move(100000)  | last     |    | Last process
processes.unfilter | escape | unfilter      | show all |    | Remove the filter

token.median | v | median      | median | + | Show the median of the latest tokens, or the latest one
token.worker | w | next_worker | worker | + | Show the tokens of one worker alone, or of all

slider.more      | right,l           | step(1)                 | step      | +←→ | One step up
slider.less      | left,h            | step(-1)                | one less  |     | One step down
slider.much_more | shift+right,L     | step(4)                 | four more |     | Four steps up
slider.much_less | shift+left,H      | step(-4)                | four less |     | Four steps down
slider.down      | down,j            | screen.focus_slider(1)  | select    | +↑↓ | Next slider
slider.up        | up,k              | screen.focus_slider(-1) | up        |     | Previous slider
slider.least     | home              | to_end(-1)              | least     |     | The least there is
slider.most      | end               | to_end(1)               | most      |     | The most there is
slider.set       | equals_sign,enter | number                  | set       | +=  | Type a value; again takes it
slider.erase     | backspace         | erase_typed             | erase     |     | Erase the last digit typed
slider.cancel    | escape            | cancel                  | cancel    |     | Cancel the drag or the number being typed

lab.as_it_is   | n | put('none')     | no lab    |   | No simulated limits
lab.ethernet   | g | put('ethernet') | Ethernet  |   | Pretend Ethernet, 1 Gbit/s
lab.wifi       | w | put('wifi')     | Wi-Fi     |   | Pretend a good Wi-Fi
lab.far_room   | f | put('far')      | far room  |   | Pretend 5 GHz, two walls away
lab.wan        | r | put('wan')      | WAN       |   | Pretend the internet, 20 ms away
lab.all        | A | put_on_all      | on all    | + | Put this link's lab on all links
lab.remove     | c | clear           | clear     | + | Remove simulated limits
lab.remove_all | C | clear_all       | clear all |   | Remove simulated limits on all links
lab.undo       | u | undo            | undo      | + | Undo the last change
lab.sweep      | s | sweep           | sweep     | + | Measure the speed while a link gets slower step by step, over the predicted curve
lab.export     | x | export_sweep    | export    |   | Save the sweep as a picture (SVG) and as values (CSV)
lab.end_sweep  | escape | end_sweep  | end sweep |   | Stop the sweep, which puts the lab back, or close its result

picker.choose    | enter    | choose   | use     | +⏎  | Use this model
picker.down      | down     | move(1)  | down    | +↑↓ | Next model
picker.up        | up       | move(-1) | up      |     | Previous model
picker.page_down | pagedown | move(8)  | further |     | Further down
picker.page_up   | pageup   | move(-8) | back up |     | Further up
picker.cancel    | escape   | cancel   | cancel  | +   | Keep the current model

plans.choose    | enter    | choose   | take    | +⏎  | Take this plan; undo brings the one before back
plans.down      | down     | move(1)  | down    | +↑↓ | Next plan
plans.up        | up       | move(-1) | up      |     | Previous plan
plans.page_down | pagedown | move(8)  | further |     | Further down
plans.page_up   | pageup   | move(-8) | back up |     | Further up
plans.cancel    | escape   | cancel   | cancel  | +   | Keep the plan as it is

racing.begin   | enter              | choose     | begin   |     | Begin the race of A against the row under the cursor
racing.down    | down,j             | select(1)  | down    |     | Next plan
racing.up      | up,k               | select(-1) | up      |     | Previous plan
racing.make_a  | a                  | make_first | make A  |     | Make the plan under the cursor A
racing.next    | tab,shift+tab      | next_field | next    |    | Go to the prompt, or back to the plans
racing.cancel  | escape             | cancel     | cancel  |     | Race nothing

race.replay | r,space  | replay | replay | + | Show both answers side by side, in the time they took
race.copy   | y        | app.copy | copy | + | Copy the result
race.close  | escape,q | cancel | close  | + | Cancel the race, or close it; what served before serves again

best.choose    | enter              | choose   | take    | +⏎  | Take this plan; undo brings the one before back
best.down      | down,j             | move(1)  | down    | +↑↓ | Next plan, shown on the bar
best.up        | up,k               | move(-1) | up      |     | Previous plan
best.page_down | pagedown           | move(8)  | further |     | Further down
best.page_up   | pageup             | move(-8) | back up |     | Further up
best.cancel    | escape             | cancel   | cancel  | +   | Keep the plan as it was

option.left  | left,h  | pick(-1) | choose |  | Choose the one before
option.right | right,l | pick(1)  | choose |  | Choose the next one

settings.down      | down     | move(1)  | select  | +↑↓ | Next setting
settings.up        | up       | move(-1) | up      |     | Previous setting
settings.page_down | pagedown | move(8)  | further |     | Further down
settings.page_up   | pageup   | move(-8) | back up |     | Further up
settings.cancel    | escape   | cancel   | back    |     | Leave the value, then the list

adding.add    | enter  | add      | add   |     | Add the machine
adding.invite | ctrl+n | invite   | invite |    | Invite a machine that dials this console instead
adding.down   | down   | pick(1)  | pick  | +↑↓ | Next name
adding.up     | up     | pick(-1) | up    |     | Previous name
adding.cancel | escape | cancel   | close | +   | Close

tick.switch | space | switch | switch | + | Turn it on or off

choice.choose | enter          | choose     | choose |  | Choose the selected answer
choice.down   | down,j,tab     | select(1)  | down   |  | Next answer
choice.up     | up,k,shift+tab | select(-1) | up     |  | Previous answer

dialog.cancel | escape | cancel | cancel |  | Close, changing nothing

dialogs.help | question_mark,f1 | app.help | help |  | Help and keys of this dialog, and back
dialogs.jump | ctrl+j,f10       | app.jump | jump |  | Jump by letters to anything in this dialog
dialogs.menu | full_stop        | app.menu | menu |  | What can be done with the selected thing

jumping.back   | backspace | back   | back   | | Take the letter back
jumping.cancel | escape    | cancel | cancel | | Stay here

reading.close | q,enter | cancel   | close |  | Close
reading.copy  | y       | app.copy | copy  |  | Copy all of it

json.show | J | app.raw | JSON | | Show its JSON, as the API gives it

raw.copy  | y   | app.copy | copy  |  | Copy all of it, or the selection
raw.close | q,J | cancel   | close |  | Close

search.find      | slash,ctrl+f  | find             | find     | +/ | Search this text
search.next      | n,enter       | step(1)          | next     | +  | Next match
search.previous  | N,shift+enter | step(-1)         | previous | +  | Previous match
search.up        | up,k          | scroll_lines(-1) | up       |    | A line up
search.down      | down,j        | scroll_lines(1)  | down     |    | A line down
search.first     | home,g        | scroll_to(0)     | first    |    | The beginning
search.last      | end,G         | scroll_to(1)     | last     |    | The end
search.leave     | escape        | leave            | leave    | +  | Leave the search, back to where you were

finder.choose    | enter    | choose   | go      |  | Go there, or do it
finder.down      | down     | move(1)  | down    |  | Next match
finder.up        | up       | move(-1) | up      |  | Previous match
finder.page_down | pagedown | move(8)  | further |  | Further down
finder.page_up   | pageup   | move(-8) | back up |  | Further up
finder.cancel    | escape   | cancel   | cancel  |  | Close

events.open      | enter    | choose         | more    | +⏎ | Show the evidence
events.filter    | slash    | screen.filter  | filter  | +/ | Filter
events.down      | down,j   | select(1)      | down    |    | Next event
events.up        | up,k     | select(-1)     | up      |    | Previous event
events.page_down | pagedown | select(12)     | further |    | Further down
events.page_up   | pageup   | select(-12)    | back up |    | Further up
events.first     | home,g   | select(-10000) | first   |    | The oldest event
events.last      | end,G    | select(10000)  | last    |    | The newest event

evidence.log | o | open_log | open log |  | Go to the process's log
"""


def _parsed(row: str) -> Action:
    id_, keys, action, label, footer, tooltip = (
        part.strip() for part in row.split("|")
    )
    display = footer.removeprefix("!").removeprefix("+")
    return Action(
        id_,
        keys,
        action,
        label,
        tooltip,
        show="+" in footer.removesuffix(display),
        display=display or None,
        priority=footer.startswith("!"),
    )


ACTIONS = tuple(_parsed(row) for row in TABLE.splitlines() if row)

PLACES = {
    "app": "",
    "cluster": "cluster",
    "split": "cluster.split",
    "peers": "cluster.peers",
    "live": "cluster.live",
    "chat": "cluster.chat",
    "token": "cluster.token",
    "composer": "cluster.chat",
    "log": "logs",
    "layers": "layers",
    "models": "models",
    "traffic": "traffic",
    "lab": "lab",
    "processes": "machines",
    "slider": "lab",
}
"""Area of an action to the screen, and the pane, that does it; not of dialogs."""
FUNCTION_KEYS = frozenset(f"f{number}" for number in range(1, 13))


_HARMLESS = frozenset({"slider.cancel", "lab.export", "lab.end_sweep"})
"""Of the Lab's; a sweep that ends there is one's own, or of a replay."""
ACTING = frozenset(
    {
        *(
            "cluster.launch",
            "cluster.race",
            "layers.launch",
            "cluster.stop",
            "live.provision",
        ),
        *("peers.add", "peers.invite", "peers.provision", "peers.cancel", "peers.copy"),
        *("peers.remove", "peers.rename", "peers.data", "models.get", "models.cancel"),
        *("models.remove", "processes.restart", "processes.kill"),
        *(
            action.id
            for action in ACTIONS
            if action.area in {"lab", "slider"}
            and "focus_slider" not in action.action
            and action.id not in _HARMLESS
        ),
    }
)
"""Actions that change the cluster, a machine or a link: not for who only watches."""
IN_DIALOGS = frozenset(
    {"app.help", "app.copy", "app.raw", "app.interrupt", "app.jump", "app.menu"}
)
SCREEN_ACTIONS = frozenset(
    action.action.removeprefix("app.").partition("(")[0]
    for action in ACTIONS
    if action.area in {"app", "cluster", "layers", "models", "peers", "split"}
    and action.action.startswith("app.")
    and action.id not in IN_DIALOGS
)
"""Methods of the app that do nothing while a dialog is open."""
_MOVES = frozenset(
    {
        *("up", "down", "left", "right", "first", "last", "page_up", "page_down"),
        *("choose", "send", "newline", "erase", "cancel", "clear", "leave"),
        *("palette", "interrupt", "back", "write"),
    }
)
NO_COMMANDS = frozenset(
    action.id
    for action in ACTIONS
    if action.area not in {"cluster", "live", "path"}
    and action.id.partition(".")[2] in _MOVES
)
"""Actions that only make sense as keys: the palette does not list them."""


_OF_LISTS = frozenset(
    {
        *("filter", "unfilter", "sort", "reverse", "next_pane", "previous_pane"),
        *("more", "less", "much_more", "much_less", "mark_down", "mark_up", "unmark"),
        *("next_boundary", "previous_boundary", "next", "previous", "add", "least"),
        *("model", "clusters", "detail_up", "detail_down", "rescan", "path", "most"),
        *("earlier_question", "later_question", "invite"),
    }
)
"""Verbs about a list or a screen, not about the thing selected there."""
IN_MENUS = frozenset(
    action.id
    for action in ACTIONS
    if action.area in {*PLACES, "events", "evidence"} - {"app"}
    and action.id not in NO_COMMANDS | {"split.none", "split.all"}
    and action.id.partition(".")[2] not in _OF_LISTS
) | {"app.copy", "models.choose", "models.cancel", "peers.cancel"}
"""Actions on the selected thing, which its menu lists."""


def action_of(action_id: str) -> Action:
    return _BY_ID[action_id]


def is_action(action_id: str) -> bool:
    return action_id in _BY_ID


_BY_ID = {action.id: action for action in ACTIONS}


def acts(action: object, node: DOMNode) -> bool:
    """True if an action, as this node binds it, changes anything."""
    return any(
        binding.id in ACTING and binding.action == action
        for bound in node._bindings.key_to_bindings.values()
        for binding in bound
    )


def bindings(*areas: str) -> list[BindingType]:
    return [
        binding
        for action in ACTIONS
        if action.area in areas
        for binding in _bindings(action)
    ]


def keymap_problems(keymap: Mapping[str, str]) -> list[str]:
    """The problems of a user's keys; Textual would ignore them silently."""
    unknown = sorted(keymap.keys() - _BY_ID.keys())
    problems = [f"The configuration gives keys to no action: {id_}" for id_ in unknown]
    return problems + [
        f"The configuration gives {key} to {action.id}: {clash}"
        for action in ACTIONS
        for key in split_keys(keymap.get(action.id, ""))
        for clash in _clashes(action, key, keymap)
    ]


def _clashes(action: Action, key: str, keymap: Mapping[str, str]) -> Iterator[str]:
    others = [
        other
        for other in ACTIONS
        if other is not action and key in split_keys(keymap.get(other.id, other.keys))
    ]
    for other in others:
        if other.area == action.area:
            yield f"{other.id} lost it"
        elif _is_around(other.area, action.area):
            yield f"{other.id} lost it there"
    inner = [other.id for other in others if _is_around(action.area, other.area)]
    if inner:
        yield f"where {' or '.join(inner)} is offered it stays that"


def _is_around(outer: str, inner: str) -> bool:
    if not {outer, inner} <= PLACES.keys():
        return False
    around, within = PLACES[outer], PLACES[inner]
    return around != within and (not around or within.startswith(f"{around}."))


def split_keys(keys: str) -> list[str]:
    return [key.strip() for key in keys.split(",") if key.strip()]


def _bindings(action: Action) -> list[BindingType]:
    """One binding; a second, with priority, for function keys beside other keys.

    A text field takes letters and digits, and Textual's some function keys too: those
    that change screens must work from everywhere.
    """
    keys = split_keys(action.keys)
    function_keys = [key for key in keys if key in FUNCTION_KEYS]
    others = [key for key in keys if key not in FUNCTION_KEYS]
    if not others or not function_keys:
        return [_binding(action, keys, priority=action.priority)]
    return [
        _binding(action, others, priority=action.priority),
        _binding(action, function_keys, priority=True),
    ]


def _binding(action: Action, keys: list[str], *, priority: bool) -> Binding:
    return Binding(
        ",".join(keys),
        action.action,
        action.label,
        show=action.show,
        key_display=action.display,
        priority=priority,
        tooltip=action.tooltip,
        id=action.id,
    )
